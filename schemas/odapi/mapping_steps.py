"""Rules for the steps of `data_augmentation_options`.

They were checked against the Object Detection API's `preprocessor_builder.py` and `core/preprocessor.py`.
"""

from detloom.schemas.model import augmentations as policies
from detloom.schemas.model import augmentations as tree
from detloom.schemas.model import color_augmentations as colors
from detloom.schemas.model import crop_augmentations as crops
from detloom.schemas.odapi.rules import Depends, Refused, Rule, Structure, at, each, same

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
    "random_image_scale",
    "random_jitter_boxes",
    "random_pad_image",
    "random_crop_pad_image",
    "random_crop_to_aspect_ratio",
    "ssd_random_crop_pad",
    "ssd_random_crop_fixed_aspect_ratio",
    "ssd_random_crop_pad_fixed_aspect_ratio",
    "random_self_concat_image",
    "random_downscale_to_target_pixels",
    "random_square_crop_by_scale",
    "random_pixel_value_scale",
    "random_rgb_to_gray",
    "random_distort_color",
    "random_black_patches",
    "random_jpeg_quality",
    "random_patch_gaussian",
    "adjust_gamma",
    "autoaugment_image",
)
_REFUSED: dict[str, Rule | Depends] = {
    **each(
        Refused(reason="every backbone normalizes its input itself; remove this step"),
        "normalize_image",
        "subtract_channel_mean",
    ),
    **each(
        Refused(reason="the model's image_resizer sets the size; remove this step"),
        "resize_image",
        "random_resize_method",
    ),
    "scale_boxes_to_pixel_coordinates": Refused(reason="boxes are always relative to the image; remove this step"),
    "convert_class_logits_to_softmax": Refused(reason="needs several class scores per box, which are not supported"),
    "rgb_to_gray": Refused(
        reason="returns images with one channel; random_rgb_to_gray { probability: 1 } keeps the three channels that "
        "networks need"
    ),
    "drop_label_probabilistically": Refused(reason="changes the data set; remove these objects from the data instead"),
    "remap_labels": Refused(reason="changes the data set; change the classes in the data instead"),
}
_WINDOW = same("min_object_covered", "min_area", "max_area", "overlap_thresh", "random_coef", "clip_boxes")
_CROP = {**_WINDOW, **same("min_aspect_ratio", "max_aspect_ratio")}
_PADDED_SIZE = same("min_padded_size_ratio", "max_padded_size_ratio")
_MAX_PIXELS = "800000 if omitted: the Object Detection API passes on only fields that are set, not the default 500000"
_COLOR_RGB = same("pad_color_r", "pad_color_g", "pad_color_b")

STEPS: dict[str, Structure] = {
    "PreprocessingStep": Structure(
        choice="preprocessing_step",
        fields={
            **each(at(""), *_SUPPORTED),
            **_REFUSED,
        },
    ),
    "RandomHorizontalFlip": Structure(
        makes=tree.RandomHorizontalFlip, fields=same("keypoint_flip_permutation", "probability")
    ),
    "RandomVerticalFlip": Structure(
        makes=tree.RandomVerticalFlip, fields=same("keypoint_flip_permutation", "probability")
    ),
    "RandomRotation90": Structure(makes=tree.RandomRotation90, fields=same("keypoint_rot_permutation", "probability")),
    "RandomAdjustBrightness": Structure(makes=tree.RandomAdjustBrightness, fields=same("max_delta")),
    "RandomAdjustContrast": Structure(makes=tree.RandomAdjustContrast, fields=same("min_delta", "max_delta")),
    "RandomAdjustHue": Structure(makes=tree.RandomAdjustHue, fields=same("max_delta")),
    "RandomAdjustSaturation": Structure(makes=tree.RandomAdjustSaturation, fields=same("min_delta", "max_delta")),
    "RandomCropImage": Structure(makes=crops.RandomCropImage, fields=_CROP),
    "SSDRandomCrop": Structure(makes=crops.SsdRandomCrop, fields=same("operations")),
    "SSDRandomCropOperation": Structure(makes=crops.SsdRandomCropOperation, fields=_CROP),
    "RandomAbsolutePadImage": Structure(
        makes=tree.RandomAbsolutePadImage, fields=same("max_height_padding", "max_width_padding", "pad_color")
    ),
    "RandomScaleCropAndPadToSquare": Structure(
        makes=crops.RandomScaleCropAndPadToSquare, fields=same("output_size", "scale_min", "scale_max")
    ),
    "RandomCropPadImage": Structure(
        makes=crops.RandomCropPadImage, fields={**_CROP, **_PADDED_SIZE, **same("pad_color")}
    ),
    "RandomCropToAspectRatio": Structure(
        makes=crops.RandomCropToAspectRatio, fields=same("aspect_ratio", "overlap_thresh", "clip_boxes")
    ),
    "SSDRandomCropFixedAspectRatio": Structure(
        makes=crops.SsdRandomCropFixedAspectRatio, fields=same("operations", "aspect_ratio")
    ),
    "SSDRandomCropFixedAspectRatioOperation": Structure(
        makes=crops.SsdRandomCropFixedAspectRatioOperation, fields=_WINDOW
    ),
    "SSDRandomCropPad": Structure(makes=crops.SsdRandomCropPad, fields=same("operations")),
    "SSDRandomCropPadOperation": Structure(
        makes=crops.SsdRandomCropPadOperation, fields={**_CROP, **_PADDED_SIZE, **_COLOR_RGB}
    ),
    "SSDRandomCropPadFixedAspectRatio": Structure(
        makes=crops.SsdRandomCropPadFixedAspectRatio, fields={**same("operations", "aspect_ratio"), **_PADDED_SIZE}
    ),
    "SSDRandomCropPadFixedAspectRatioOperation": Structure(makes=crops.SsdRandomCropOperation, fields=_CROP),
    "RandomSquareCropByScale": Structure(
        makes=crops.RandomSquareCropByScale, fields=same("max_border", "scale_min", "scale_max", "num_scales")
    ),
    "RandomPadImage": Structure(
        makes=tree.RandomPadImage,
        fields=same("min_image_height", "min_image_width", "max_image_height", "max_image_width", "pad_color"),
    ),
    "RandomImageScale": Structure(makes=tree.RandomImageScale, fields=same("min_scale_ratio", "max_scale_ratio")),
    "RandomDownscaleToTargetPixels": Structure(
        makes=tree.RandomDownscaleToTargetPixels,
        fields={**same("random_coef", "min_target_pixels"), "max_target_pixels": at("max_target_pixels", _MAX_PIXELS)},
    ),
    "RandomJitterBoxes": Structure(makes=tree.RandomJitterBoxes, fields=same("ratio", "jitter_mode")),
    "RandomSelfConcatImage": Structure(
        makes=tree.RandomSelfConcatImage,
        fields=same("concat_vertical_probability", "concat_horizontal_probability"),
    ),
    "RandomPixelValueScale": Structure(makes=colors.RandomPixelValueScale, fields=same("minval", "maxval")),
    "RandomRGBtoGray": Structure(makes=colors.RandomRgbToGray, fields=same("probability")),
    "RandomDistortColor": Structure(makes=colors.RandomDistortColor, fields=same("color_ordering")),
    "RandomBlackPatches": Structure(
        makes=colors.RandomBlackPatches, fields=same("max_black_patches", "probability", "size_to_image_ratio")
    ),
    "RandomJpegQuality": Structure(
        makes=colors.RandomJpegQuality, fields=same("random_coef", "min_jpeg_quality", "max_jpeg_quality")
    ),
    "RandomPatchGaussian": Structure(
        makes=colors.RandomPatchGaussian,
        fields=same("random_coef", "min_patch_size", "max_patch_size", "min_gaussian_stddev", "max_gaussian_stddev"),
    ),
    "AdjustGamma": Structure(makes=colors.AdjustGamma, fields=same("gamma", "gain")),
    "AutoAugmentImage": Structure(makes=policies.AutoAugmentImage, fields=same("policy_name")),
}
