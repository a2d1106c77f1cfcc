import csv

import numpy as np
import pytest

from detloom.schemas.model.detector import GridAnchorGenerator, MultiscaleAnchorGenerator, SsdAnchorGenerator
from detloom.schemas.odapi.pipeline_config import read_pipeline_config
from detloom.trainer_module.boxes import anchors as anchors_module
from detloom.trainer_module.boxes.anchors import feature_hw, feature_hws, num_anchors_per_location


@pytest.mark.parametrize(
    ("from_feature_maps", "first", "last"),
    [
        # 320 / 128 = 2.5, so the grid starts at 0: 3 x 3 centres at 0, 128 and 256; side 128: the first from -64 to 64
        (False, [-0.2, -0.2, 0.2, 0.2], [0.6, 0.6, 1.0, 1.0]),
        # a stride of 320 / 3: the first at 1 / 6 of the image, sides of 1 / 3
        (True, [0, 0, 1 / 3, 1 / 3], [2 / 3, 2 / 3, 1, 1]),
    ],
)
def test_strides_that_do_not_divide_the_image(from_feature_maps, first, last):
    generator = MultiscaleAnchorGenerator(
        min_level=7,
        max_level=7,
        anchor_scale=1,
        aspect_ratios=(1.0,),
        scales_per_octave=1,
        strides_from_feature_maps=from_feature_maps,
    )
    anchors = anchors_module.build_anchors(generator, (320, 320), [feature_hw((320, 320), 7)])
    np.testing.assert_allclose(anchors[[0, -1]], [first, last], atol=1e-7)


def test_plain_ssd_has_scales_of_the_shorter_side():
    # Finest of two maps, 2 x 3 places: the first at a quarter and a sixth. Its anchors: scale 0.1, and min_scale 0.2
    # with ratios 2 and 0.5; all heights times 100 / 100, widths times 100 / 150.
    generator = SsdAnchorGenerator(num_layers=2, max_scale=0.8, aspect_ratios=(1.0,))
    anchors = anchors_module.build_anchors(generator, (100, 150), [(2, 3), (1, 2)])
    half, root = 0.05, 2**0.5
    expected = [
        [1 / 4 - half, 1 / 6 - half / 1.5, 1 / 4 + half, 1 / 6 + half / 1.5],
        [1 / 4 - 0.1 / root, 1 / 6 - 0.1 * root / 1.5, 1 / 4 + 0.1 / root, 1 / 6 + 0.1 * root / 1.5],
        [1 / 4 - 0.1 * root, 1 / 6 - 0.1 / root / 1.5, 1 / 4 + 0.1 * root, 1 / 6 + 0.1 / root / 1.5],
    ]
    np.testing.assert_allclose(anchors[:3], expected, atol=1e-6)
    # Coarsest, 1 x 2 places, the last at a half and three quarters: scale 0.8, then the root of 0.8 * 1.
    half = 0.8**0.5 / 2
    np.testing.assert_allclose(anchors[-1], [0.5 - half, 0.75 - half / 1.5, 0.5 + half, 0.75 + half / 1.5], atol=1e-6)
    assert num_anchors_per_location(generator) == (3, 2)


def test_plain_ssd_uses_configured_strides_and_scales():
    # from the reference: its last anchor at (100, 70) strides, (50, 35) offsets: row 0, column 1, ratio 0.5, scale 0.6
    generator = SsdAnchorGenerator(
        num_layers=2,
        scales=(0.3, 0.6),
        aspect_ratios=(1.0, 0.5),
        interpolated_scale_aspect_ratio=0.0,
        height_stride=(50, 100),
        width_stride=(50, 70),
        height_offset=(20, 50),
        width_offset=(10, 35),
        reduce_boxes_in_lowest_layer=False,
    )
    anchors = anchors_module.build_anchors(generator, (100, 150), [(2, 3), (1, 2)])
    half_h, half_w = 0.3 * 2**0.5, 0.3 / 2**0.5 / 1.5
    np.testing.assert_allclose(anchors[-1], [0.5 - half_h, 0.7 - half_w, 0.5 + half_h, 0.7 + half_w], atol=1e-6)
    np.testing.assert_allclose(anchors[0], [0.05, 1 / 15 - 0.1, 0.35, 1 / 15 + 0.1], atol=1e-6)
    assert num_anchors_per_location(generator) == (2, 2)


def test_a_grid_is_in_pixels():
    # places at 8 + 16 * row, 4 + 24 * column; scale 0.5, ratio 4: height 32 * 0.5 / 2, width 64 * 0.5 * 2
    generator = GridAnchorGenerator(
        scales=(0.5, 1.0),
        aspect_ratios=(1.0, 4.0),
        height=32,
        width=64,
        height_stride=16,
        width_stride=24,
        height_offset=8,
        width_offset=4,
    )
    anchors = anchors_module.build_anchors(generator, (32, 48), [(2, 2)]) * [32, 48, 32, 48]
    assert anchors.shape == (16, 4)
    np.testing.assert_allclose(anchors[0], [0, -12, 16, 20], atol=1e-5)  # scale 0.5, ratio 1
    np.testing.assert_allclose(anchors[1], [-8, -28, 24, 36], atol=1e-5)  # scale 1, ratio 1
    np.testing.assert_allclose(anchors[14], [24 - 4, 28 - 32, 24 + 4, 28 + 32], atol=1e-5)
    assert num_anchors_per_location(generator) == (4,)


def test_padding_to_a_multiple_adds_locations(zoo_config, changed):
    model = changed(zoo_config.model, {"feature_extractor.pad_to_multiple": 128})
    assert feature_hws(zoo_config.model.feature_extractor, (100, 130)) == ((13, 17), (7, 9), (4, 5), (2, 3), (1, 2))
    assert feature_hws(model.feature_extractor, (100, 130)) == ((16, 32), (8, 16), (4, 8), (2, 4), (1, 2))


def test_anchors_of_every_ssd_in_the_zoo_have_the_reference_count_and_ends(reference_dir):
    with (reference_dir / "keys" / "summary.tsv").open(encoding="utf-8") as table:
        rows = [row for row in csv.DictReader(table, delimiter="\t") if row["meta_architecture"] == "ssd"]
    assert len(rows) == 16
    for row in rows:
        model = read_pipeline_config(reference_dir / "zoo_configs" / f"{row['config']}.config").model
        height, width = map(int, row["preprocessed_size"].split("x"))
        hws = feature_hws(model.feature_extractor, (height, width))
        anchors = anchors_module.build_anchors(model.anchor_generator, (height, width), hws)
        counts = num_anchors_per_location(model.anchor_generator)
        assert len(anchors) == sum(h * w * count for (h, w), count in zip(hws, counts, strict=True))
        assert len(anchors) == int(row["num_anchors"]), row["config"]
        for anchor, column in ((anchors[0], "first_anchor"), (anchors[-1], "last_anchor")):
            np.testing.assert_array_equal(anchor, np.array(row[column].split(), np.float32), err_msg=row["config"])
