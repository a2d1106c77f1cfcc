"""Rules for the steps of `data_augmentation_options`.

They were checked against the Object Detection API's `preprocessor_builder.py` and `core/preprocessor.py`.
"""

from detloom.schemas.model import augmentations as tree
from detloom.schemas.model import color_augmentations as colors
from detloom.schemas.model import crop_augmentations as crops
from detloom.schemas.odapi.rules import Depends, Refused, Rule, Structure, at, each

_MAX_PIXELS = "800000 if omitted: the Object Detection API passes on only fields that are set, not the default 500000"
_STEPS: dict[str, type] = {
    "RandomHorizontalFlip": tree.RandomHorizontalFlip,
    "RandomVerticalFlip": tree.RandomVerticalFlip,
    "RandomRotation90": tree.RandomRotation90,
    "RandomAdjustBrightness": tree.RandomAdjustBrightness,
    "RandomAdjustContrast": tree.RandomAdjustContrast,
    "RandomAdjustHue": tree.RandomAdjustHue,
    "RandomAdjustSaturation": tree.RandomAdjustSaturation,
    "RandomCropImage": crops.RandomCropImage,
    "SSDRandomCrop": crops.SsdRandomCrop,
    "SSDRandomCropOperation": crops.SsdRandomCropOperation,
    "RandomAbsolutePadImage": tree.RandomAbsolutePadImage,
    "RandomScaleCropAndPadToSquare": crops.RandomScaleCropAndPadToSquare,
    "RandomCropPadImage": crops.RandomCropPadImage,
    "RandomCropToAspectRatio": crops.RandomCropToAspectRatio,
    "SSDRandomCropFixedAspectRatio": crops.SsdRandomCropFixedAspectRatio,
    "SSDRandomCropFixedAspectRatioOperation": crops.SsdRandomCropFixedAspectRatioOperation,
    "SSDRandomCropPad": crops.SsdRandomCropPad,
    "SSDRandomCropPadOperation": crops.SsdRandomCropPadOperation,
    "SSDRandomCropPadFixedAspectRatio": crops.SsdRandomCropPadFixedAspectRatio,
    "SSDRandomCropPadFixedAspectRatioOperation": crops.SsdRandomCropOperation,
    "RandomSquareCropByScale": crops.RandomSquareCropByScale,
    "RandomPadImage": tree.RandomPadImage,
    "RandomImageScale": tree.RandomImageScale,
    "RandomJitterBoxes": tree.RandomJitterBoxes,
    "RandomSelfConcatImage": tree.RandomSelfConcatImage,
    "RandomPixelValueScale": colors.RandomPixelValueScale,
    "RandomRGBtoGray": colors.RandomRgbToGray,
    "RandomDistortColor": colors.RandomDistortColor,
    "RandomBlackPatches": colors.RandomBlackPatches,
    "RandomJpegQuality": colors.RandomJpegQuality,
    "RandomPatchGaussian": colors.RandomPatchGaussian,
    "AdjustGamma": colors.AdjustGamma,
    "AutoAugmentImage": tree.AutoAugmentImage,
}
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

STEPS: dict[str, Structure] = {
    "PreprocessingStep": Structure(choice="preprocessing_step", fields=_REFUSED),
    **{message: Structure(makes=step) for message, step in _STEPS.items()},
    "RandomDownscaleToTargetPixels": Structure(
        makes=tree.RandomDownscaleToTargetPixels,
        fields={"max_target_pixels": at("max_target_pixels", _MAX_PIXELS)},
    ),
}
