import csv
import math
from dataclasses import replace

import pytest

from detloom.schemas.model.network import FeatureExtractor, FixedShapeResizer
from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.detectors.one_stage.network import build_ssd
from detloom.trainer_module.layers.backbones.odapi_keys import efficientnet_layer_keys

ROOT = "model/_feature_extractor"
# The part of a block by the reference's name; our name for it follows the block's name.
PARTS = {
    "expand_conv2d": "expand_conv",
    "expand_bn": "expand_bn",
    "depthwise_conv2d": "dwconv",
    "depthwise_bn": "bn",
    "se_reduce_conv2d": "se_reduce",
    "se_expand_conv2d": "se_expand",
    "project_conv2d": "project_conv",
    "project_bn": "project_bn",
}


def extractor_of(size: str, **neck: object) -> FeatureExtractor:
    config = find_preset(f"efficientdet_{size}").config.model.feature_extractor
    return replace(config, neck=replace(config.neck, **neck))


def our_name(variable_name: str) -> str:
    """Convert "stack_2/block_1/expand_bn/gamma" to "block3b_expand_bn"."""
    if variable_name.startswith("stem"):
        return "stem_conv" if "conv" in variable_name else "stem_bn"
    stage, block, part, _ = variable_name.split("/")
    return f"block{int(stage[6:]) + 1}{chr(ord('a') + int(block[6:]))}_{PARTS[part]}"


@pytest.mark.parametrize("size", ["d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7"])
def test_every_key_of_the_reference_belongs_to_the_equivalent_layer(reference_dir, size):
    (file,) = (reference_dir / "keys").glob(f"ssd_efficientdet_{size}_*.tsv")
    with file.open() as lines:
        rows = [row for row in csv.DictReader(lines, delimiter="\t") if "/_efficientnet/" in row["key"]]
    theirs = {our_name(row["variable_name"]): row["key"].split("/.ATTRIBUTES")[0].rpartition("/")[0] for row in rows}
    assert efficientnet_layer_keys(extractor_of(size)) == theirs


def test_blocks_unused_by_the_reference_are_found_in_its_classification_network():
    keys = efficientnet_layer_keys(extractor_of("d2", features_of_last_blocks=True))
    assert keys["block7a_project_bn"] == f"{ROOT}/_efficientnet/layer_with_weights-173"
    assert keys["block7b_expand_conv"] == f"{ROOT}/classification_backbone/layer_with_weights-174"
    assert keys["block7b_project_bn"] == f"{ROOT}/classification_backbone/layer_with_weights-181"


# arXiv:1911.09070, table 2: 3.9, 6.6, 8.1, 12, 20.7, 33.7, 51.9, 51.9 and 77 million.
WITH_LAST_BLOCKS = {
    "d0": 3_880_067,
    "d1": 6_625_898,
    "d2": 8_097_039,
    "d3": 12_032_296,
    "d4": 20_723_675,
    "d5": 33_653_315,
    "d6": 51_871_782,
    "d7": 51_871_782,
    "d7x": 77_147_166,
}
MARKS = {"d0": pytest.mark.slow, "d1": pytest.mark.slow, "d7x": pytest.mark.slow}


@pytest.mark.parametrize(
    "size", [pytest.param(size, marks=MARKS.get(size, pytest.mark.nightly)) for size in WITH_LAST_BLOCKS]
)
def test_number_of_parameters_with_the_last_blocks_equals_the_paper(size):
    resizer, extractor = FixedShapeResizer(height=256, width=256), extractor_of(size, features_of_last_blocks=True)
    model = replace(
        find_preset(f"efficientdet_{size}").config.model, image_resizer=resizer, feature_extractor=extractor
    )
    network = build_ssd(model, 90)
    assert sum(math.prod(variable.shape) for variable in network.trainable_weights) == WITH_LAST_BLOCKS[size]
