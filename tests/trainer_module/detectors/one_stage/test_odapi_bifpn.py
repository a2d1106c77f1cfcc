import csv
from dataclasses import replace

import pytest

from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.detectors.one_stage.odapi_keys import bifpn_layer_keys

STAGE = "model/_feature_extractor/_bifpn_stage"


def our_name(variable_name: str) -> str:
    """Convert "EfficientDet-D0/bifpn/node_05/1_dn_lvl_3/input_0_up_lvl_3/1x1_pre_sample/conv/bias" to our layer name.

    The index of the node's input is left out: `neck_1_down_3_input_conv`.
    """
    node, *parts = variable_name.split("/")[3:-1]
    node = node.replace("_dn_lvl_", "_down_").replace("_up_lvl_", "_up_")
    kinds = {"conv": "conv", "separable_conv": "conv", "batchnorm": "bn", "combine": "combine"}
    return f"neck_{node}_{'input_' if parts[0].startswith('input') else ''}{kinds[parts[-1]]}"


@pytest.mark.parametrize("size", ["d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7"])
def test_every_key_of_the_reference_belongs_to_the_equivalent_layer(reference_dir, size):
    (file,) = (reference_dir / "keys").glob(f"ssd_efficientdet_{size}_*.tsv")
    with file.open() as lines:
        rows = [row for row in csv.DictReader(lines, delimiter="\t") if "/_bifpn_stage/" in row["key"]]
    theirs = {}
    for row in rows:
        path = row["key"].split("/.ATTRIBUTES")[0].rpartition("/")[0]
        theirs[path] = our_name(row["variable_name"])
    keys = bifpn_layer_keys(find_preset(f"efficientdet_{size}").config.model.feature_extractor)
    # In the reference's configurations the convolution is always at a node's first input.
    assert {path: name.replace("input_0", "input") for name, path in keys.items()} == theirs


def test_keys_depend_on_the_structure():
    config = find_preset("efficientdet_d7x").config.model.feature_extractor
    keys = bifpn_layer_keys(config)
    # Nodes 0 to 2 are the levels 6 to 8, 3 and 4 the first levels 7 and 6 of the top-down path, 5 is level 5.
    assert keys["neck_0_up_6_input_0_conv"] == f"{STAGE}/node_input_blocks/0/0/1/0"
    assert keys["neck_1_down_7_bn"] == f"{STAGE}/node_post_combine_block/3/2"
    assert keys["neck_1_down_5_input_0_bn"] == f"{STAGE}/node_input_blocks/5/0/1/1"
    assert "neck_1_down_7_combine" not in keys  # a plain sum
    weighted = bifpn_layer_keys(replace(config, neck=replace(config.neck, combine_method="attention")))
    assert weighted["neck_1_down_7_combine"] == f"{STAGE}/node_combine_op/3"
