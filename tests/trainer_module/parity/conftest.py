"""Reference values of the Object Detection API for each model, and a table of the differences.

A reference is a small file in `data/` (benchmarks/peers/odapi_reference.py --pack) or a folder with everything (in
DETLOOM_SHARED/parity and in DETLOOM_PARITY_DIR). The small files hold no weights: both sides make them from the keys.
`DETLOOM_PARITY_TABLE=docs/parity.md` writes the table into that page.

oneDNN chooses its kernels by the processor, and batch norm over few values in training mode enlarges their rounding,
with two stages on some processors beyond the bounds. A process of its own, without oneDNN, computes their training
step: `python conftest.py VALUES OUTPUT`.
"""

import csv
import importlib.util
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.center_net import CenterNet
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.model.faster_rcnn import FasterRcnn
from detloom.schemas.odapi.pipeline_config import read_pipeline_config
from detloom.trainer_module.boxes.anchors import feature_hws, num_anchors_per_location
from detloom.trainer_module.detectors.centernet.network import output_suffixes
from detloom.trainer_module.detectors.families import build_detector, family_of
from detloom.trainer_module.detectors.preprocess import network_hw
from detloom.trainer_module.weights.odapi_keys import odapi_keys
from detloom.trainer_module.weights.restore import find_trained, restore

ROOT = Path(__file__).parents[3]
STEP = 2.0**-12  # of the small files' predictions
# One model of each family; backbones are in layers/. Others are nightly.
DEFAULT = ("ssd_mobilenet_v2_fpnlite", "centernet_mobilenet_v2_fpn_kpts", "faster_rcnn_resnet50_v1")
SLOW = ("ssd_efficientdet_d0", "centernet_hourglass_20")
SHARED = Path(os.environ.get("DETLOOM_SHARED", ROOT.parent / "shared")) / "parity"
SMALL, FOLDER, OTHER_FOLDER = "small", "whole", "whole, `DETLOOM_PARITY_DIR`"
COLUMNS = (
    "preprocessed",
    "anchors",
    "boxes, inference",
    "classes, inference",
    "boxes, training",
    "classes, training",
    "box targets",
    "matches",
    "losses",
    "gradients",
    "statistics",
    "detections",
)
TABLE_START, TABLE_END = "<!-- table: written by `make parity` -->", "<!-- end of table -->"
# By our output, what the reference calls it.
SSD_OUTPUTS = {"offsets_BA4": "box_encodings", "class_logits_BAC": "class_predictions_with_background"}
CENTERNET_OUTPUTS = {"sizes_BHW2": "box|scale", "offsets_BHW2": "box|offset", "class_logits_BHWK": "object_center"}
# After the name of the task and a slash.
KEYPOINT_OUTPUTS = {
    "keypoint_logits_BHWP": "keypoint|heatmap",
    "keypoint_offsets_BHWQ": "keypoint|offset",
    "keypoint_regression_BHWQ": "keypoint|regression",
}
TWO_STAGE_OUTPUTS = {
    "rpn_offsets_BA4": "rpn_box_encodings",
    "objectness_logits_BA2": "rpn_objectness_predictions_with_background",
    "offsets_BPQ4": "refined_box_encodings",
    "class_logits_BPC": "class_predictions_with_background",
}
BOX_MASKS = "mask_logits_BNhwL"
MASK_OUTPUTS = {"pixel_embeddings_BHWD": "PIXEL_EMBEDDING", "instance_embeddings_BHWE": "INSTANCE_EMBEDDING"}
SSD_LOSSES = {"class_loss": "Loss/classification_loss", "box_loss": "Loss/localization_loss"}
CENTERNET_LOSSES = {
    "class_loss": "Loss/object_center",
    "size_loss": "Loss/box/scale",
    "offset_loss": "Loss/box/offset",
}
TWO_STAGE_LOSSES = {
    "rpn_objectness_loss": "Loss/RPNLoss/objectness_loss",
    "rpn_box_loss": "Loss/RPNLoss/localization_loss",
    "class_loss": "Loss/BoxClassifierLoss/classification_loss",
    "box_loss": "Loss/BoxClassifierLoss/localization_loss",
}
KEYPOINT_LOSSES = {f"keypoint_{name}_loss": f"keypoint/{name}" for name in ("heatmap", "offset", "regression")}
# In keys that the reference stores and never uses: EfficientNet's classifier, the last batch norm of ResNet-50 V2.
UNUSED = ("/classification_backbone/", "/_base_model/layer_with_weights-101/")
EFFICIENTNET_PENALTY = 5e-6  # times the sum of squares, as the reference penalizes its EfficientNets
# What was drawn when the training mode of the shared EfficientDet-D0 was made, found by its statistics: of all blocks
# and both images, block6d was skipped for the second.
DRAWN = {SHARED / "ssd_efficientdet_d0_512x512": {"block6d_drop": [1.0, 0.0]}}


def _load_lively_weights() -> Any:
    path = ROOT / "benchmarks/peers/lively_weights.py"
    spec = importlib.util.spec_from_file_location("lively_weights", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


lively = _load_lively_weights()


class Reference:
    """One model's values, and our detector with the same weights."""

    def __init__(self, path: Path, source: str, folder: Path) -> None:
        self.name, self.source, self.path, self._scratch = path.stem, source, path, folder

    @cached_property
    def _small(self) -> dict[str, np.ndarray] | None:
        return dict(np.load(self.path)) if self.path.suffix == ".npz" else None

    def _text(self, name: str) -> str:
        return self._small[name].tobytes().decode() if self._small else (self.path / name).read_text()

    @cached_property
    def summary(self) -> dict[str, Any]:
        return json.loads(self._text("summary.json"))

    @cached_property
    def is_thin(self) -> bool:
        """Inference mode's predictions are not whole, and there are no detections."""
        return bool(self.summary.get("is_thin", False))

    @cached_property
    def is_center_net(self) -> bool:
        return isinstance(self.config.model, CenterNet)

    @cached_property
    def is_two_stage(self) -> bool:
        """The values were made with settings that sample every anchor and every proposal: nothing is random."""
        return isinstance(self.config.model, FasterRcnn)

    @cached_property
    def has_box_masks(self) -> bool:
        return self.is_two_stage and self.config.model.number_of_stages == 3

    @cached_property
    def has_random_training_mode(self) -> bool:
        """Made with stochastic depth that nobody wrote down; odapi_reference.py turns it off."""
        return bool(self._dropouts) and self.summary.get("dropout") != "off" and self.path not in DRAWN

    @cached_property
    def config(self) -> TrainEvalConfig:
        path = self._scratch / "pipeline.config"
        path.write_text(self._text("pipeline.config"))
        return read_pipeline_config(path)

    @cached_property
    def label_map(self) -> LabelMap:
        """In the reference, the second class has the keypoints."""
        keypoints = family_of(self.config.model).keypoints
        names = [str(each) for each in range(self.config.model.num_classes)]
        if keypoints is not None:
            names[1] = keypoints.class_name
        return LabelMap.from_names(names)

    @cached_property
    def detector(self) -> Any:
        """A detector with the reference's weights, restored as in training; dropout is disabled."""
        detector = build_detector(self.config.model, self.label_map)
        train = replace(
            self.config.train,
            fine_tune_checkpoint=str(self._checkpoint(detector.network)),
            fine_tune_checkpoint_type="full",
        )
        report = restore(train, detector, find_trained(train, detector))
        assert not report.fresh
        drawn = DRAWN.get(self.path, {})
        for layer in detector.network.layers:
            if isinstance(layer, keras.layers.Dropout):
                layer.call = _scaled_by(drawn.get(layer.name, [1.0, 1.0]), layer.rate if drawn else 0.0)
        return detector

    @property
    def _dropouts(self) -> list[keras.layers.Layer]:
        return [layer for layer in self.detector.network.layers if isinstance(layer, keras.layers.Dropout)]

    @cached_property
    def keys(self) -> dict[str, str]:
        return odapi_keys(family_of(self.config.model), self.detector.network)

    def _checkpoint(self, network: keras.Model) -> Path:
        """Prefix of one in the layout of the model zoo's."""
        if self._small is None:
            return self.path / "checkpoint/ckpt-0"
        variables = {f"{layer.name}/{each.name}": each for layer in network.layers for each in layer.weights}
        scales = {key: int(value) for key, value in self.by_key("input_scales").items()}
        keys = odapi_keys(family_of(self.config.model), network)
        tensors = {key: lively.lively_value(key, tuple(variables[name].shape), scales) for name, key in keys.items()}
        graph = TrackableObjectGraph(nodes=[TrackableObjectGraph.TrackableObject()])
        tensors["_CHECKPOINTABLE_OBJECT_GRAPH"] = graph.SerializeToString()
        prefix = self._scratch / "ckpt-0"
        names = sorted(tensors)
        tf.raw_ops.SaveV2(
            prefix=str(prefix),
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[tensors[name] for name in names],
        )
        return prefix

    def is_unused(self, key: str) -> bool:
        """Return True for a key that the reference stores but never uses."""
        return any(part in key for part in UNUSED) and key not in self.keys.values()

    def unused_penalty(self) -> float:
        """Return the penalty of the reference on unused kernels and biases of EfficientNet."""
        if self._small is not None:  # a weight that only the penalty reaches has the gradient 2 * factor * weight
            norms = [
                norm / (2 * EFFICIENTNET_PENALTY)
                for key, norm in self.by_key("gradient_norms").items()
                if self.is_unused(key)
            ]
            return sum(EFFICIENTNET_PENALTY * norm**2 for norm in norms)
        reader = tf.train.load_checkpoint(str(self.path / "checkpoint/ckpt-0"))
        unused = [
            key
            for key in reader.get_variable_to_shape_map()
            if self.is_unused(key) and lively.variable_name(key) in ("kernel", "bias")
        ]
        return sum(EFFICIENTNET_PENALTY * np.square(reader.get_tensor(key), dtype=np.float64).sum() for key in unused)

    @cached_property
    def images_BHW3(self) -> np.ndarray:
        """uint8."""
        if self._small is None:
            return np.load(SHARED / "input_images_uint8.npy")
        return lively.lively_images(2, *(self.summary.get("image_hw") or self.summary["picture_hw"]))

    @cached_property
    def _training_stride(self) -> int:
        if self._small is not None:
            return int(self.summary["stride"])
        (path,) = self.path.glob("predictions_train_stride*.npz")
        return int(path.stem.rpartition("stride")[2])

    def preprocessed(self) -> tuple[np.ndarray, np.ndarray, int]:
        """Images [B, H, W, 3], the shape of each without padding [B, 3], and which rows and columns (every n-th)."""
        if self._small is None:
            stored = np.load(self.path / "preprocessed.npz")
            return stored["preprocessed"], stored["true_image_shapes"], 1
        return self._small["preprocessed"], self._small["true_image_shapes"], self._training_stride

    def anchors(self) -> tuple[np.ndarray, int]:
        if self._small is None:
            return np.load(self.path / "predictions_eval.npz")["anchors"], 1
        return self._small["anchors"], self._training_stride

    @property
    def outputs(self) -> dict[str, str]:
        """Return the names of outputs in the reference, by our names."""
        if self.is_two_stage:
            return {**TWO_STAGE_OUTPUTS, **({BOX_MASKS: "mask_predictions"} if self.has_box_masks else {})}
        if not self.is_center_net:
            return SSD_OUTPUTS
        names = CENTERNET_OUTPUTS
        if (task := self.config.model.keypoint_estimation_task) is not None:
            names = {**names, **{ours: f"{task.task_name}|{theirs}" for ours, theirs in KEYPOINT_OUTPUTS.items()}}
        if self.config.model.deepmac_mask_estimation is not None:
            names = {**names, **MASK_OUTPUTS}
        return {
            f"{ours}{suffix}": f"{theirs}{suffix.replace('_hourglass', '#')}"
            for suffix in output_suffixes(self.config.model.feature_extractor)
            for ours, theirs in names.items()
        }

    @property
    def losses(self) -> dict[str, str]:
        if self.is_two_stage:
            masks = {"mask_loss": "Loss/BoxClassifierLoss/mask_loss"} if self.has_box_masks else {}
            return {**TWO_STAGE_LOSSES, **masks}
        if not self.is_center_net:
            return SSD_LOSSES
        if self.config.model.deepmac_mask_estimation is not None:
            return {**CENTERNET_LOSSES, "mask_loss": "Loss/deep_mask_estimation"}
        if (task := self.config.model.keypoint_estimation_task) is None:
            return CENTERNET_LOSSES
        keypoints = {ours: f"Loss/{task.task_name}/{theirs}" for ours, theirs in KEYPOINT_LOSSES.items()}
        return {**CENTERNET_LOSSES, **keypoints}

    def predictions(self, mode: str) -> dict[str, np.ndarray]:
        """Return the outputs of the reference in "eval" or "train" mode, by our names; see `as_stored`."""
        if self._small is not None:
            found = {name: self._small[f"predictions_{mode}/{theirs}"] for name, theirs in self.outputs.items()}
            if self.has_box_masks:  # the reference has the classes first
                found[BOX_MASKS] = found[BOX_MASKS].transpose(0, 1, 3, 4, 2)
            return {name: np.float32(value * STEP) for name, value in found.items()}
        file = "predictions_eval" if mode == "eval" else f"predictions_train_stride{self._training_stride}"
        stored = np.load(self.path / f"{file}.npz")
        return {ours: stored[name] for ours, name in self.outputs.items()}

    def mask_logits(self, mode: str) -> dict[str, np.ndarray]:
        """Return the logits of Deep-MAC's masks in the boxes of the ground truth, by our name; {} without masks."""
        name = f"predictions_{mode}/MASK_LOGITS_GT_BOXES"
        if self._small is None or name not in self._small:
            return {}
        return {"mask_logits_BGss": np.float32(self._small[name] * STEP)}

    def as_stored(self, outputs: Any, mode: str) -> dict[str, np.ndarray]:
        """Return the anchors or rows of our outputs that `predictions` has: every n-th if there are many."""
        stride = self._training_stride if mode == "train" or self.is_thin else 1
        return {name: _every(np.asarray(outputs[name]), stride) for name in self.outputs}

    def prepared(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Our network's input and its true rows and columns, [B, 2]."""
        images, true_hw = family_of(self.config.model).preprocessing.prepare(tf.constant(self.images_BHW3))
        return images, tf.broadcast_to(true_hw, [len(images), 2])

    def rows_of_one_pixel(self, num_rows: int) -> np.ndarray:
        """bool, of the stored rows of training mode: anchors of levels of one pixel.

        Batch norm has two values there, one of each image: their difference, however small, becomes 1, so that
        rounding is enlarged, and again in the next such level that is made from it.
        """
        model = self.config.model
        if self.is_center_net or self.is_two_stage:
            return np.zeros(num_rows, bool)
        levels = feature_hws(model.feature_extractor, network_hw(model.image_resizer))
        counts = num_anchors_per_location(model.anchor_generator)
        rows = [np.full(h * w * count, h * w == 1) for (h, w), count in zip(levels, counts, strict=True)]
        return _every(np.concatenate(rows)[np.newaxis], self._training_stride)[0]

    def detections(self) -> tuple[dict[str, np.ndarray], tf.Tensor | None]:
        """The reference's, and the true rows and columns to give to ours.

        CenterNet's are in the frame of the whole input, with padding: the reference finds centres there, ours not.
        """
        stored = self.part("detections")
        if not self.is_center_net:
            return stored, self.prepared()[1]
        if "detection_boxes_strided" in stored:
            boxes_cells = stored["detection_boxes_strided"]
            stored["detection_boxes"] = np.clip(boxes_cells / np.tile(np.float32(self.detector.map_hw), 2), 0, 1)
        return stored, None

    def part(self, part: str) -> dict[str, np.ndarray]:
        """`groundtruth`, `targets` or `detections`."""
        if self._small is None:
            return dict(np.load(self.path / f"{part}.npz"))
        return {name.partition("/")[2]: value for name, value in self._small.items() if name.startswith(f"{part}/")}

    def by_key(self, part: str) -> dict[str, float]:
        """`input_scales`, `gradient_norms` or `moved_means`, empty where the reference lacks them."""
        if self._small is not None:
            return dict(
                zip(self._text(f"{part}/keys").split("\n"), self._small[f"{part}/values"].tolist(), strict=True)
            )
        path = self.path / "by_key.json"
        if path.exists():
            return json.loads(path.read_text())[part]
        return self._moved_means_by_name() if part == "moved_means" else {}

    def _moved_means_by_name(self) -> dict[str, float]:
        """Read statistics that are stored by the names of variables."""
        with (self.path / "checkpoint_keys.tsv").open() as lines:  # written by a second model of the same process
            rows = csv.DictReader(lines, delimiter="\t")
            keys = {re.sub(r"extractor_\d+/", "extractor/", row["variable_name"]): row["key"] for row in rows}
        with np.load(self.path / "moving_stats_after_train_forward.npz") as stored:
            return {keys[name.split(":")[0].replace("|", "/")]: float(stored[name].mean()) for name in stored}

    def batch(self) -> dict[str, tf.Tensor]:
        """The ground truth as `Detector.losses` takes it."""
        boxes, classes, weights = (tf.constant(each) for each in self.padded_groundtruth())
        images, true_hw = self.prepared()
        batch = {"image": images, "true_hw": true_hw}
        batch |= {"boxes_yxyx_rel": boxes, "class_indices": classes, "box_weights": weights}
        if "masks0" in self.part("groundtruth"):
            batch["masks_GHW"] = tf.constant(self._padded("masks", 0))
        if "keypoints0" in self.part("groundtruth"):
            batch["keypoints_yx_rel_GP2"] = tf.constant(self._padded("keypoints", np.nan))
        return batch

    def stored_outputs(self) -> dict[str, tf.Tensor]:
        """Return the outputs of inference mode under our names; masks of two stages are those of its detections."""
        outputs = {**self.predictions("eval"), **self.mask_logits("eval")}
        if self.is_two_stage:
            proposals = self.part("proposals_eval")
            outputs |= {"proposals_yxyx_rel_BP4": proposals["boxes"], "num_proposals_B": proposals["num"]}
        if self.has_box_masks:
            found = self.part("detections")
            num_masks = found["num_detections"].astype(np.int32)
            outputs |= {"mask_boxes_yxyx_rel_BN4": found["detection_boxes"], "num_masks_B": num_masks}
        return {name: tf.constant(each) for name, each in outputs.items()}

    def training_step(self) -> SimpleNamespace:
        """Return outputs, losses, gradients and moved statistics of one step; the network is as before after it."""
        if not self.is_two_stage:
            return take_training_step(self)
        output = self._scratch / "step.pickle"
        environment = {"TF_ENABLE_ONEDNN_OPTS": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, __file__, str(self.path), str(output)]
        done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return pickle.loads(output.read_bytes())

    def padded_groundtruth(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Boxes [B, G, 4], class indices [B, G] (-1 pads) and weights [B, G]."""
        return self._padded("boxes", 0), self._padded("classes", -1).astype(np.int32), self._padded("weights", 0)

    def _padded(self, name: str, padding: float) -> np.ndarray:
        """Return a part of the ground truth of both images with five rows each."""
        parts = [self.part("groundtruth")[f"{name}{image}"] for image in range(2)]
        padded = np.full([2, 5, *parts[0].shape[1:]], padding, parts[0].dtype)
        for rows, part in zip(padded, parts, strict=True):
            rows[: len(part)] = part
        return padded


def take_training_step(reference: Reference) -> SimpleNamespace:
    detector, batch = reference.detector, reference.batch()
    network = detector.network
    before = [(each, each.numpy()) for each in network.non_trainable_variables]
    with tf.GradientTape() as tape:
        outputs = detector.forward(batch, training=True)
        losses = detector.losses(outputs, batch)
        penalty = tf.add_n(network.losses) if network.losses else tf.constant(0.0)
        total = tf.add_n([*losses.values(), penalty])
    values = [each.value for each in network.trainable_variables]
    gradients = tape.gradient(total, values, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    variables = {f"{layer.name}/{each.name}": each for layer in network.layers for each in layer.weights}
    keys = {id(each): reference.keys[name] for name, each in variables.items()}
    pairs = zip(network.trainable_variables, gradients, strict=True)
    step = SimpleNamespace(
        outputs={name: np.asarray(each) for name, each in outputs.items()},
        losses={name: float(each) for name, each in losses.items()},
        penalty=float(penalty),
        gradient_norm=float(tf.linalg.global_norm(gradients)),
        norms={keys[id(variable)]: float(tf.norm(gradient)) for variable, gradient in pairs},
        moved_means={keys[id(each)]: float(np.mean(each)) for each in variables.values()},
    )
    for variable, value in before:
        variable.assign(value)
    return step


def _every(array: np.ndarray, stride: int) -> np.ndarray:
    """Return every n-th entry of the second axis if there are many, as odapi_reference.py does."""
    return array[:, ::stride] if array.shape[1] > 4 * stride else array


def _scaled_by(drawn: list[float], rate: float) -> Callable[..., tf.Tensor]:
    """Return the effect of a dropout with these draws, image by image."""
    kept_B111 = np.float32(drawn)[:, None, None, None] / (1 - rate)

    def call(inputs: tf.Tensor, training: bool = False) -> tf.Tensor:
        return inputs * kept_B111 if training else inputs

    return call


def _references() -> Iterator[Any]:
    small = [(path, SMALL) for path in sorted((Path(__file__).parent / "data").glob("*.npz"))]
    shared = [(path.parent, FOLDER) for path in sorted(SHARED.glob("*/pipeline.config"))]
    for path, source in (*small, *shared):
        marks = [pytest.mark.slow] if path.stem in SLOW else [pytest.mark.nightly]
        is_default = source == SMALL and path.stem in DEFAULT
        yield pytest.param((path, source), id=path.stem, marks=[] if is_default else marks)
    if folder := os.environ.get("DETLOOM_PARITY_DIR"):
        for path in sorted(Path(folder).glob("*/pipeline.config")):
            yield pytest.param((path.parent, OTHER_FOLDER), id=f"{path.parent.name}-other", marks=[pytest.mark.nightly])


_errors: dict[tuple[str, str], dict[str, tuple[float, str]]] = {}  # by model, source and column: error and mark


@pytest.fixture(scope="module", params=list(_references()))
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    path, source = request.param
    yield Reference(path, source, tmp_path_factory.mktemp("reference"))
    keras.backend.clear_session()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Make the training step of two stages slow, which another process computes."""
    for item in items:
        is_step = "training_step" in getattr(item, "fixturenames", ()) and "faster_rcnn" in item.name
        if is_step and item.get_closest_marker("nightly") is None:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def lively_weights() -> Any:
    """The module that makes weights and images from names, in both systems."""
    return lively


@pytest.fixture(scope="session")
def record_of() -> Callable[..., None]:
    """`record_of(model, source, column, error, mark="")` puts it into the table; the largest of a column counts."""

    def put(model: str, source: str, column: str, error: float, mark: str = "") -> None:
        assert column in COLUMNS, column
        row = _errors.setdefault((model, source), {})
        row[column] = max((float(error), mark), row.get(column, (0.0, mark)))

    return put


@pytest.fixture
def record(reference: Reference, record_of: Callable[..., None]) -> Callable[..., None]:
    def put(column: str, error: float, mark: str = "") -> None:
        record_of(reference.name, reference.source, column, error, mark)

    return put


def _table() -> str:
    lines = [f"| model | values | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 2) + "|"]
    for (model, source), row in sorted(_errors.items()):
        lines.append(f"| {model} | {source} | {' | '.join(_shown(column, row.get(column)) for column in COLUMNS)} |")
    return "\n".join(lines)


def _shown(column: str, cell: tuple[float, str] | None) -> str:
    if cell is None:
        return ""
    error, mark = cell
    return (f"{error:.0f}" if column == "matches" else f"{error:.1e}" if error else "0") + mark


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not _errors:
        return
    terminalreporter.section("largest error by tensor (losses, gradients, statistics: relative)")
    terminalreporter.write_line(_table())
    if page := os.environ.get("DETLOOM_PARITY_TABLE"):
        text = Path(page).read_text("utf-8")
        start, end = text.index(TABLE_START) + len(TABLE_START), text.index(TABLE_END)
        Path(page).write_text(f"{text[:start]}\n{_table()}\n{text[end:]}", "utf-8")


def main() -> None:
    values, output = map(Path, sys.argv[1:])
    output.write_bytes(pickle.dumps(take_training_step(Reference(values, SMALL, output.parent))))


if __name__ == "__main__":
    main()
