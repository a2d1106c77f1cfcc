"""`detloom presets`: list the presets as a table or as JSON."""

import json
from typing import Any

import click

from detloom.pipelines.command_line.command import command
from detloom.pipelines.command_line.options import json_option


@command("detloom presets", "detloom presets --json")
@json_option
def presets(as_json: bool) -> None:
    """List the detectors that a run file can name.

    With parameters, input size and published AP on COCO.
    """
    if as_json:
        click.echo(json.dumps(preset_rows(), indent=1))
    else:
        click.echo(format_presets())


def preset_rows() -> list[dict[str, Any]]:
    """Return one mapping per preset: name, family, input size in pixels, parameters, published AP of boxes, masks
    and keypoints in percent, and whether this version trains it."""
    from detloom.schemas.presets.presets import list_presets
    from detloom.trainer_module.detectors.supported import unsupported_settings

    return [
        {
            "name": preset.name,
            "family": preset.family,
            "input_size": "x".join(map(str, preset.image_hw)),
            "num_parameters": preset.num_parameters,
            "coco_ap": preset.coco_ap,
            "coco_mask_ap": preset.coco_mask_ap,
            "coco_keypoint_ap": preset.coco_keypoint_ap,
            "trained_here": not unsupported_settings(preset.config),
            "description": preset.description,
        }
        for preset in list_presets()
    ]


def format_presets() -> str:
    header = (
        f"{'preset':<38}  {'family':<12}  {'input':<9}  {'parameters':>10}  {'COCO AP':>7}  {'masks':>5}  "
        f"{'points':>6}  trained here"
    )
    lines = [
        f"{row['name']:<38}  {row['family']:<12}  {row['input_size']:<9}  {row['num_parameters'] / 1e6:>8.1f} M  "
        f"{row['coco_ap']:>7.1f}  {row['coco_mask_ap'] or '':>5}  "
        f"{row['coco_keypoint_ap'] or '':>6}  {'yes' if row['trained_here'] else 'not yet'}"
        for row in preset_rows()
    ]
    notes = (
        "Parameters: trainable, with 90 classes. COCO AP: published AP of boxes, masks and keypoints, val2017, percent."
    )
    return "\n".join([header, *lines, "", notes])
