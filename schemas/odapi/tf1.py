"""Names in configurations of the Object Detection API for TensorFlow 1, and what to use instead."""

from collections.abc import Collection

from detloom.schemas.reading.typed_dict import nearest_hint

_MOBILE, _LARGE = "ssd_mobilenet_v2_fpn_keras", "ssd_resnet50_v1_fpn_keras"
# Feature extractors without a TF2 form, by the start of their name, with the closest supported one.
_CLOSEST = {
    "embedded_ssd_mobilenet_v1": "ssd_mobilenet_v1_keras",
    "ssd_inception": "ssd_mobilenet_v2_keras",
    "ssd_mobilenet_edgetpu": _MOBILE,
    "ssd_mobilenet_v1_ppn": "ssd_mobilenet_v1_fpn_keras",
    "ssd_mobilenet_v2_mnasfpn": _MOBILE,
    "ssd_mobilenet_v3": _MOBILE,
    "ssd_mobiledet": _MOBILE,
    "ssd_pnasnet": _LARGE,
    **{f"ssd_resnet{depth}_v1_ppn": f"ssd_resnet{depth}_v1_fpn_keras" for depth in (50, 101, 152)},
    "faster_rcnn_inception_v2": "faster_rcnn_resnet50_keras",
    "faster_rcnn_nas": "faster_rcnn_inception_resnet_v2_keras",
    "faster_rcnn_pnas": "faster_rcnn_inception_resnet_v2_keras",
}
_WAY_TO_TF2 = (
    "This is a TF1 configuration, whose checkpoints cannot be read: see 'From TensorFlow 1' in docs/migration.md"
)
# Fields of feature extractors and of SSD that the format no longer has.
_REMOVED = (
    "batch_norm_trainable",
    "use_expected_classification_loss_under_sampling",
    "minimum_negative_sampling",
    "min_num_negative_samples",
    "desired_negative_sampling_ratio",
)


def allowed_extractors(name: str, supported: Collection[str]) -> str:
    """Return the supported feature extractors for a message about another one, with the way from TF1 to TF2."""
    in_tf2 = f"{name}_keras"
    closest = next((new for old, new in _CLOSEST.items() if name.startswith(old)), "")
    if in_tf2 in supported:
        hint = f"Did you mean '{in_tf2}'? '{name}' is its TF1 name. {_WAY_TO_TF2}"
    elif closest and not name.endswith("_keras"):
        hint = f"'{name}' exists in TF1 only; the closest one here is '{closest}'. {_WAY_TO_TF2}"
    else:
        hint = nearest_hint(name, supported).strip()
    return f"{', '.join(supported)}{f' ({hint})' if hint else ''}"


def removed_hint(field: str) -> str:
    """Return what to do about a field that the format had in TF1's time, or "" if it never had the field."""
    if field not in _REMOVED:
        return ""
    return f" It was removed from the format, and files of TF1's model zoo of 2018 still have it: delete {field}."
