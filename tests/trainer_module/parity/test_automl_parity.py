"""EfficientDet-D0 and Lite0 against google/automl's, in the table beside the others; errors of boxes and classes are in
units of each tensor's standard deviation, because theirs are large (3 to 20)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.detectors.families import build_detector, family_of
from detloom.trainer_module.detectors.one_stage.automl_keys import automl_sources
from detloom.trainer_module.weights.restore import find_trained, restore

BOX_FACTORS = [10, 10, 5, 5]
SOURCE = "whole"


@dataclass(frozen=True)
class Reference:
    """A folder of reference values, and the names of its arrays."""

    preset: str
    cells: dict[int, int]
    """Places of each level."""
    images: str
    anchors: str
    output: str
    largest_error: float = 1e-3
    """Bound of the largest error; that of the root mean square is always 1e-3."""
    mark: str = ""

    @property
    def model(self) -> str:
        """The row of the table."""
        return f"automl_{self.preset} ‡"


D0 = Reference(
    preset="efficientdet_d0",
    cells={3: 64 * 64, 4: 32 * 32, 5: 16 * 16, 6: 8 * 8, 7: 4 * 4},
    images="preprocessed",
    anchors="boxes_yxyx_px_stride5",
    output="{kind}_level{level}_stride{stride}",
)
LITE0 = Reference(
    preset="efficientdet_lite0",
    cells={3: 40 * 40, 4: 20 * 20, 5: 10 * 10, 6: 5 * 5, 7: 3 * 3},
    images="images",
    anchors="boxes",
    output="{kind}_{level}",
    # The weights are random, and ReLU6 cuts off most of what they cause: a relative change of the input by 1e-6 changes
    # outputs by up to 3e-2. The exact result, computed with float64, differs from the stored one by up to 4e-3 too.
    largest_error=1e-2,
    mark=" ¶",
)


@pytest.fixture(
    scope="module", params=[pytest.param(each, id=each.preset, marks=pytest.mark.nightly) for each in (D0, LITE0)]
)
def reference(request) -> Iterator[Reference]:
    yield request.param
    keras.backend.clear_session()


@pytest.fixture(scope="module")
def folder(reference, reference_dir) -> Path:
    return reference_dir / f"automl_{reference.preset}"


@pytest.fixture(scope="module")
def detector(reference) -> Detector:
    config = find_preset(reference.preset).config.model
    config = replace(config, image_resizer=replace(config.image_resizer, half_pixel_centers=True), num_classes=90)
    return build_detector(config, LabelMap.from_names(str(each) for each in range(90)))


def restore_averages(detector: Detector, path: str) -> None:
    """Restore as in training."""
    train = replace(
        find_preset("efficientdet_d0").config.train, fine_tune_checkpoint=path, fine_tune_checkpoint_type="full"
    )
    report = restore(train, detector, find_trained(train, detector))
    assert report.share == 1.0
    assert not report.fresh
    assert not report.unread


def by_level(values: np.ndarray, places: dict[int, int]) -> dict[int, np.ndarray]:
    """[B, A, depth] of all levels in google/automl's order: of its anchors at one place, scale before aspect ratio."""
    levels, start = {}, 0
    for level, cells in places.items():
        part = values[:, start : start + 9 * cells]
        start += 9 * cells
        levels[level] = np.swapaxes(part.reshape(len(part), cells, 3, 3, -1), 2, 3)
    assert start == values.shape[1]
    return levels


def test_preprocessing_matches_reference(reference, folder, detector, record_of):
    images, _ = family_of(detector.config).preprocessing.prepare(
        tf.constant(np.load(folder.parent / "input_images_uint8.npy"))
    )
    error = float(np.abs(images - np.load(folder / "preprocessed.npz")[reference.images]).max())
    record_of(reference.model, SOURCE, "preprocessed", error)
    assert error < 2e-3


def test_anchors_match_reference_in_another_order(reference, folder, detector, record_of):
    side = detector.preprocessing.network_hw[0]
    anchors = by_level(detector.anchors_yxyx_rel_A4.numpy()[None] * side, reference.cells)
    theirs = np.concatenate([level.reshape(-1, 4) for level in anchors.values()])
    with np.load(folder / "anchors.npz") as file:
        error = np.abs(theirs[::5] - file[reference.anchors]).max() / side
    record_of(reference.model, SOURCE, "anchors", error)
    assert error < 1e-6


def test_outputs_match_reference(reference, folder, detector, record_of):
    restore_averages(detector, str(folder / "model"))
    images = np.load(folder / "preprocessed.npz")[reference.images]
    outputs = detector.network(images, training=False)
    boxes = by_level(outputs["offsets_BA4"].numpy() / BOX_FACTORS, reference.cells)
    classes = by_level(outputs["class_logits_BAC"].numpy(), reference.cells)
    for kind, ours, stride in (("box", boxes, 3), ("class", classes, 11)):
        column = "boxes, inference" if kind == "box" else "classes, inference"
        with np.load(folder / "outputs_ema.npz") as stored:
            for level in reference.cells:
                theirs = stored[reference.output.format(kind=kind, level=level, stride=stride)]
                errors = np.abs(ours[level].ravel()[::stride] - theirs) / theirs.std()
                record_of(reference.model, SOURCE, column, errors.max(), reference.mark)
                assert np.sqrt(np.mean(errors**2)) < 1e-3
                assert errors.max() < reference.largest_error


# --- a small network, whose values are a file of the tests (benchmarks/peers/automl_reference.py) ---------------------


@pytest.fixture(scope="module")
def small() -> dict[str, np.ndarray]:
    """Values of EfficientDet-Lite3 at 96 pixels: 12, 6, 3, 2 and 1 cells."""
    with np.load(Path(__file__).parent / "data/automl/efficientdet_lite3.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def small_detector(small, lively_weights, tmp_path_factory) -> Detector:
    """Restored as in training, from a checkpoint in the layout of google/automl's."""
    config = find_preset("efficientdet_lite3").config
    side, num_classes = int(small["side"]), int(small["num_classes"])
    resizer = replace(config.model.image_resizer, min_dimension=side, max_dimension=side)
    detector = build_detector(
        replace(config.model, image_resizer=resizer), LabelMap.from_names(str(each) for each in range(num_classes))
    )
    variables = {f"{layer.name}/{v.name}": v for layer in detector.network.layers for v in layer.weights}
    tensors = {
        source.names[0]: lively_weights.automl_value(source.names[0], tuple(variables[name].shape))
        for name, source in automl_sources(detector.config, detector.network).items()
    }
    prefix = str(tmp_path_factory.mktemp("automl") / "model")
    names = sorted(tensors)
    slices = [""] * len(names)
    tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=names, shape_and_slices=slices, tensors=[tensors[name] for name in names]
    )
    restore_averages(detector, prefix)
    return detector


@pytest.mark.slow
def test_a_small_network_matches_reference(small, small_detector, lively_weights, record_of):
    model, source = "automl_efficientdet_lite3 ‡", "small"
    (image,) = lively_weights.lively_images(1, 80, 120)
    prepared, _ = small_detector.preprocessing.prepare(tf.constant(image))
    error = np.abs(prepared.numpy()[::7] - small["image_rows"]).max()
    record_of(model, source, "preprocessed", error)
    assert error < 2e-3
    side = prepared.shape[0]
    places = {level: (-(-side // 2**level)) ** 2 for level in range(3, 8)}
    anchors = by_level(small_detector.anchors_yxyx_rel_A4.numpy()[None] * side, places)
    error = np.abs(np.concatenate([each.reshape(-1, 4) for each in anchors.values()]) - small["anchors_yxyx_px"]).max()
    record_of(model, source, "anchors", error / side)
    assert error / side < 1e-6
    outputs = small_detector.network(prepared[None], training=False)
    for kind, ours, column in (
        ("box", outputs["offsets_BA4"].numpy() / BOX_FACTORS, "boxes, inference"),
        ("class", outputs["class_logits_BAC"].numpy(), "classes, inference"),
    ):
        for level, values in by_level(ours, places).items():
            theirs = small[f"{kind}_{level}"].ravel() * 2.0**-12
            error = np.abs(values.ravel() - theirs).max() / theirs.std()
            record_of(model, source, column, error)
            assert error < 1e-3
