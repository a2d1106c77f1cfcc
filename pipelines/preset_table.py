"""The presets as a table."""

from typing import Any

from detloom.schemas.presets import list_presets
from detloom.trainer_module.supported import untrained_parts


def preset_rows() -> list[dict[str, Any]]:
    """One mapping a preset: name, family, input size in pixels, parameters, published AP in percent, and whether this
    version trains it."""
    return [
        {
            "name": preset.name,
            "family": preset.family,
            "input_size": "x".join(map(str, preset.image_hw)),
            "num_parameters": preset.num_parameters,
            "coco_ap": preset.coco_ap,
            "trained_here": not untrained_parts(preset.config),
            "description": preset.description,
        }
        for preset in list_presets()
    ]


def format_presets() -> str:
    header = f"{'preset':<34}  {'family':<12}  {'input':<9}  {'parameters':>10}  {'COCO AP':>7}  trained here"
    lines = [
        f"{row['name']:<34}  {row['family']:<12}  {row['input_size']:<9}  {row['num_parameters'] / 1e6:>8.1f} M  "
        f"{row['coco_ap']:>7.1f}  {'yes' if row['trained_here'] else 'not yet'}"
        for row in preset_rows()
    ]
    notes = "Parameters: trainable, with 90 classes. COCO AP: published box AP on val2017, percent."
    return "\n".join([header, *lines, "", notes])
