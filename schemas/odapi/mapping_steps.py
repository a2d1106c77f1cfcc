"""What becomes of the steps of `data_augmentation_options`.

Checked against the Object Detection API's `preprocessor_builder.py` and `core/preprocessor.py`.
"""

from detloom.schemas import augmentation_config as tree
from detloom.schemas.odapi.rules import Ignored, Refused, Structure, at, each, same

_SUPPORTED = (
    "random_horizontal_flip",
    "random_vertical_flip",
    "random_rotation90",
    "random_adjust_brightness",
    "random_adjust_contrast",
    "random_adjust_hue",
    "random_adjust_saturation",
    "random_crop_image",
    "ssd_random_crop",
    "random_scale_crop_and_pad_to_square",
    "random_absolute_pad_image",
)
_REFUSED = (
    "normalize_image",
    "random_pixel_value_scale",
    "random_image_scale",
    "random_rgb_to_gray",
    "random_distort_color",
    "random_jitter_boxes",
    "random_pad_image",
    "random_crop_pad_image",
    "random_crop_to_aspect_ratio",
    "random_black_patches",
    "random_resize_method",
    "scale_boxes_to_pixel_coordinates",
    "resize_image",
    "subtract_channel_mean",
    "ssd_random_crop_pad",
    "ssd_random_crop_fixed_aspect_ratio",
    "ssd_random_crop_pad_fixed_aspect_ratio",
    "rgb_to_gray",
    "convert_class_logits_to_softmax",
    "random_self_concat_image",
    "autoaugment_image",
    "drop_label_probabilistically",
    "remap_labels",
    "random_jpeg_quality",
    "random_downscale_to_target_pixels",
    "random_patch_gaussian",
    "random_square_crop_by_scale",
    "adjust_gamma",
)
_KEYPOINTS = Ignored(reason="reorders keypoints, which are not read")
_CROP = same(
    "min_object_covered",
    "min_aspect_ratio",
    "max_aspect_ratio",
    "min_area",
    "max_area",
    "overlap_thresh",
    "random_coef",
    "clip_boxes",
)

STEPS: dict[str, Structure] = {
    "PreprocessingStep": Structure(
        choice="preprocessing_step",
        fields={
            **each(at(""), *_SUPPORTED),
            **each(Refused(reason=f"not supported; supported: {', '.join(_SUPPORTED)}"), *_REFUSED),
        },
    ),
    "RandomHorizontalFlip": Structure(
        makes=tree.RandomHorizontalFlip, fields={"keypoint_flip_permutation": _KEYPOINTS, **same("probability")}
    ),
    "RandomVerticalFlip": Structure(
        makes=tree.RandomVerticalFlip, fields={"keypoint_flip_permutation": _KEYPOINTS, **same("probability")}
    ),
    "RandomRotation90": Structure(
        makes=tree.RandomRotation90, fields={"keypoint_rot_permutation": _KEYPOINTS, **same("probability")}
    ),
    "RandomAdjustBrightness": Structure(makes=tree.RandomAdjustBrightness, fields=same("max_delta")),
    "RandomAdjustContrast": Structure(makes=tree.RandomAdjustContrast, fields=same("min_delta", "max_delta")),
    "RandomAdjustHue": Structure(makes=tree.RandomAdjustHue, fields=same("max_delta")),
    "RandomAdjustSaturation": Structure(makes=tree.RandomAdjustSaturation, fields=same("min_delta", "max_delta")),
    "RandomCropImage": Structure(makes=tree.RandomCropImage, fields=_CROP),
    "SSDRandomCrop": Structure(makes=tree.SsdRandomCrop, fields=same("operations")),
    "SSDRandomCropOperation": Structure(makes=tree.SsdRandomCropOperation, fields=_CROP),
    "RandomAbsolutePadImage": Structure(
        makes=tree.RandomAbsolutePadImage, fields=same("max_height_padding", "max_width_padding", "pad_color")
    ),
    "RandomScaleCropAndPadToSquare": Structure(
        makes=tree.RandomScaleCropAndPadToSquare, fields=same("output_size", "scale_min", "scale_max")
    ),
}
