"""Rules for the steps of `data_augmentation_options`.

They were checked against the Object Detection API's `preprocessor_builder.py` and `core/preprocessor.py`.
"""

from detloom.schemas.model.crop_augmentations import SsdRandomCropOperation
from detloom.schemas.odapi.rules import Depends, Refused, Rule, Structure, at, each

_MAX_PIXELS = "800000 if omitted: the Object Detection API passes on only fields that are set, not the default 500000"
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
    "SSDRandomCropPadFixedAspectRatioOperation": Structure(makes=SsdRandomCropOperation),
    "RandomDownscaleToTargetPixels": Structure(
        fields={"max_target_pixels": at("max_target_pixels", _MAX_PIXELS)},
    ),
}
