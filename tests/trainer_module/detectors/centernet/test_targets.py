import numpy as np
import pytest
import tensorflow as tf

from detloom.trainer_module.detectors.centernet.targets import (
    CenterNetTargets,
    assign_centernet_targets,
    gaussian_sigma,
)


def assign(truth: dict[str, np.ndarray], min_iou: float = 0.7) -> CenterNetTargets:
    return assign_centernet_targets(
        tf.convert_to_tensor(truth["boxes_yxyx_rel"]),
        tf.convert_to_tensor(truth["class_indices"]),
        map_hw=(24, 24),
        num_classes=5,
        min_iou=min_iou,
    )


@pytest.mark.parametrize(("name", "min_iou"), [("resnet50", 0.7), ("mobilenet_v2", 0.5)])
def test_targets_equal_the_reference(name, min_iou, center_net_truth, center_net_reference):
    targets = assign(center_net_truth, min_iou)
    wanted = {key: center_net_reference[f"{name}_{key}"] for key in ("indices", "sizes_target", "offsets_target")}
    is_box = targets.box_weight_BG.numpy().ravel() > 0
    cells = wanted["indices"][:, 1] * 24 + wanted["indices"][:, 2]
    np.testing.assert_allclose(targets.heatmap_BHWK.numpy(), center_net_reference[f"{name}_heatmap"], atol=1e-6)
    assert targets.cell_BG.numpy().ravel()[is_box].tolist() == cells[is_box].tolist()
    np.testing.assert_allclose(targets.size_BG2.numpy().reshape(-1, 2), wanted["sizes_target"], atol=1e-5)
    np.testing.assert_allclose(
        targets.offset_BG2.numpy().reshape(-1, 2)[is_box], wanted["offsets_target"][is_box], atol=1e-5
    )


def test_the_width_of_the_gaussian_follows_from_the_radius():
    # 10 x 10 cells at IoU 0.5: (20 + sqrt(400 - 400 / 3)) / 2 = 18.2, (40 + sqrt(1600 - 800)) / 2 = 34.1 and
    # (-20 + sqrt(400 + 400)) / 2 = 4.14, whose floor gives (2 * 4 + 1) / 6.
    assert gaussian_sigma(tf.constant([[[10.0, 10.0]]]), 0.5).numpy().tolist() == [[1.5]]


def test_a_box_without_an_area_has_the_narrowest_gaussian():
    np.testing.assert_allclose(gaussian_sigma(tf.zeros([1, 1, 2]), 0.7).numpy(), 1 / 6)


def test_without_boxes_the_heat_map_is_empty():
    nothing = {"boxes_yxyx_rel": np.zeros((1, 2, 4), np.float32), "class_indices": np.full((1, 2), -1, np.int32)}
    targets = assign(nothing)
    assert not targets.heatmap_BHWK.numpy().any()
    assert not targets.box_weight_BG.numpy().any()


def test_a_centre_on_the_far_edge_points_into_the_map():
    edge = {"boxes_yxyx_rel": np.ones((1, 1, 4), np.float32), "class_indices": np.zeros((1, 1), np.int32)}
    assert assign(edge).cell_BG.numpy().tolist() == [[24 * 24 - 1]]


def test_the_share_of_an_image_is_a_weight_of_losses_only(center_net_truth):
    boxes, classes = (tf.convert_to_tensor(center_net_truth[name]) for name in ("boxes_yxyx_rel", "class_indices"))
    shares = tf.constant([[0.75, 0.75, 0.25, 0.25], [0.5, 0.5, 0.0, 0.0]])
    settings = {"map_hw": (24, 24), "num_classes": 5, "min_iou": 0.7}
    targets = assign_centernet_targets(boxes, classes, None, shares, **settings)
    whole = assign(center_net_truth)
    np.testing.assert_array_equal(targets.heatmap_BHWK, whole.heatmap_BHWK)
    np.testing.assert_allclose(targets.box_weight_BG, whole.box_weight_BG * shares)
    is_center = whole.heatmap_BHWK.numpy() == 1
    weights = targets.center_weights_BHWK.numpy()
    assert sorted(weights[is_center].tolist()) == [0.25, 0.25, 0.5, 0.5, 0.75]  # two boxes of a class have one centre
    assert not weights[~is_center].any()


def test_the_weight_of_a_box_lowers_its_gaussian(center_net_truth):
    weights = tf.constant([[1.0, 1.0, 0.5, 1.0], [1.0, 0.0, 1.0, 1.0]])
    targets = assign_centernet_targets(
        tf.convert_to_tensor(center_net_truth["boxes_yxyx_rel"]),
        tf.convert_to_tensor(center_net_truth["class_indices"]),
        weights,
        map_hw=(24, 24),
        num_classes=5,
        min_iou=0.7,
    )
    heatmap = targets.heatmap_BHWK.numpy()
    assert heatmap[0, 14, 15, 3] == 0.5
    assert not heatmap[1, ..., 1].any()
    assert targets.box_weight_BG.numpy().tolist() == [[1, 1, 0.5, 1], [1, 0, 0, 0]]
