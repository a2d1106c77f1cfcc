"""What the Object Detection API computes, model by model, and a table of how far from it we are.

A reference is a small file in `data/` (benchmarks/peers/odapi_reference.py --pack) or a folder with everything (in
DETLOOM_SHARED/parity and in DETLOOM_PARITY_DIR). The small files hold no weights: both sides make them from the keys.
`DETLOOM_PARITY_TABLE=docs/parity.md` writes the table into that page.
"""

import importlib.util
import json
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.config import TrainEvalConfig
from detloom.schemas.label_map import LabelMap
from detloom.schemas.pipeline_config import read_pipeline_config
from detloom.trainer_module.anchors import feature_hws, num_anchors_per_location
from detloom.trainer_module.checkpoints.odapi_keys import odapi_keys
from detloom.trainer_module.detector import build_detector
from detloom.trainer_module.preprocess import network_hw

ROOT = Path(__file__).parents[3]
STEP = 2.0**-12  # of the small files' predictions
SLOW = ("efficientdet_d1", "resnet101", "resnet152")  # of the small files; folders are slow except for the first two
SHARED = Path(os.environ.get("DETLOOM_SHARED", ROOT.parent / "shared")) / "parity"
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


def _load_lively_weights() -> Any:
    path = ROOT / "benchmarks/peers/lively_weights.py"
    spec = importlib.util.spec_from_file_location("lively_weights", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


lively = _load_lively_weights()


class Reference:
    """One model's values, and our detector with the same weights."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.name, self.path, self._scratch = path.stem, path, folder

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
    def has_random_training_mode(self) -> bool:
        """Made with stochastic depth; odapi_reference.py turns it off."""
        is_dropping = any(isinstance(layer, keras.layers.Dropout) for layer in self.detector.network.layers)
        return is_dropping and self.summary.get("dropout") != "off"

    @cached_property
    def config(self) -> TrainEvalConfig:
        path = self._scratch / "pipeline.config"
        path.write_text(self._text("pipeline.config"))
        return read_pipeline_config(path)

    @cached_property
    def label_map(self) -> LabelMap:
        return LabelMap.from_names(str(each) for each in range(self.config.model.num_classes))

    @cached_property
    def detector(self) -> Any:
        detector = build_detector(self.config.model, self.label_map)
        for layer in detector.network.layers:
            if isinstance(layer, keras.layers.Dropout):
                layer.rate = 0.0  # random: off in the reference values too
        self._restore(detector.network)
        return detector

    @cached_property
    def keys(self) -> dict[str, str]:
        return odapi_keys(self.config.model, self.detector.network)

    def _restore(self, network: keras.Model) -> None:
        variables = {f"{layer.name}/{each.name}": each for layer in network.layers for each in layer.weights}
        reader = tf.train.load_checkpoint(str(self._checkpoint(network)))
        for name, key in odapi_keys(self.config.model, network).items():
            variables[name].assign(reader.get_tensor(key))

    def _checkpoint(self, network: keras.Model) -> Path:
        """Prefix of one in the layout of the model zoo's."""
        if self._small is None:
            return self.path / "checkpoint/ckpt-0"
        variables = {f"{layer.name}/{each.name}": each for layer in network.layers for each in layer.weights}
        scales = {key: int(value) for key, value in self.by_key("input_scales").items()}
        keys = odapi_keys(self.config.model, network)
        tensors = {key: lively.lively_value(key, tuple(variables[name].shape), scales) for name, key in keys.items()}
        prefix = self._scratch / "ckpt-0"
        names = sorted(tensors)
        tf.raw_ops.SaveV2(
            prefix=str(prefix),
            tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[tensors[name] for name in names],
        )
        return prefix

    @cached_property
    def pictures_BHW3(self) -> np.ndarray:
        """uint8."""
        if self._small is None:
            return np.load(SHARED / "input_images_uint8.npy")
        return lively.lively_pictures(2, *self.summary["picture_hw"])

    @cached_property
    def _training_stride(self) -> int:
        if self._small is not None:
            return int(self.summary["stride"])
        (path,) = self.path.glob("predictions_train_stride*.npz")
        return int(path.stem.rpartition("stride")[2])

    def preprocessed(self) -> tuple[np.ndarray, np.ndarray, int]:
        """Pictures [B, H, W, 3], the shape of each without padding [B, 3], and which rows and columns (every n-th)."""
        if self._small is None:
            stored = np.load(self.path / "preprocessed.npz")
            return stored["preprocessed"], stored["true_image_shapes"], 1
        return self._small["preprocessed"], self._small["true_image_shapes"], self._training_stride

    def anchors(self) -> tuple[np.ndarray, int]:
        if self._small is None:
            return np.load(self.path / "predictions_eval.npz")["anchors"], 1
        return self._small["anchors"], self._training_stride

    def predictions(self, mode: str) -> tuple[np.ndarray, np.ndarray, int]:
        """Offsets and class logits of "eval" or "train" mode, and of which anchors (every n-th)."""
        stride = self._training_stride if mode == "train" or self.is_thin else 1
        names = ("box_encodings", "class_predictions_with_background")
        if self._small is None:
            file = "predictions_eval.npz" if mode == "eval" else f"predictions_train_stride{stride}.npz"
            stored = np.load(self.path / file)
            return stored[names[0]], stored[names[1]], stride
        offsets, logits = (np.float32(self._small[f"predictions_{mode}/{name}"] * STEP) for name in names)
        return offsets, logits, stride

    @cached_property
    def rows_of_several_pixels(self) -> np.ndarray:
        """bool [A]: anchors of levels of more than one pixel.

        In training mode, batch norm has two values there, one of each picture: their difference, however small, becomes
        1, and so the last bits decide.
        """
        model = self.config.model
        levels = feature_hws(model, network_hw(model.image_resizer))
        counts = num_anchors_per_location(model.anchor_generator)
        rows = [np.full(h * w * count, h * w > 1) for (h, w), count in zip(levels, counts, strict=True)]
        return np.concatenate(rows)

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
        return json.loads(path.read_text())[part] if path.exists() else {}

    def padded_groundtruth(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Boxes [B, G, 4], class indices [B, G] (-1 pads) and weights [B, G]."""
        truth = self.part("groundtruth")
        boxes, classes, weights = np.zeros([2, 5, 4], np.float32), np.full([2, 5], -1), np.zeros([2, 5], np.float32)
        for i in range(2):
            count = len(truth[f"boxes{i}"])
            for padded, name in ((boxes, "boxes"), (classes, "classes"), (weights, "weights")):
                padded[i, :count] = truth[f"{name}{i}"]
        return boxes, classes.astype(np.int32), weights


def _references() -> Iterator[Any]:
    for path in sorted((Path(__file__).parent / "data").glob("ssd_*.npz")):
        yield pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem.endswith(SLOW) else [])
    folders = [SHARED, *(Path(each) for each in [os.environ.get("DETLOOM_PARITY_DIR")] if each)]
    for folder in folders:
        for path in sorted(folder.glob("ssd_*/pipeline.config")):
            yield pytest.param(path.parent, id=path.parent.name, marks=[] if folder == SHARED else [pytest.mark.slow])


_errors: dict[str, dict[str, float]] = {}  # by reference and column; the summary below shows them


@pytest.fixture(scope="module", params=list(_references()))
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    yield Reference(request.param, tmp_path_factory.mktemp("reference"))
    keras.backend.clear_session()


@pytest.fixture
def record(reference: Reference) -> Any:
    """`record(column, error)` puts the error into the table; the largest of a column counts."""

    def put(column: str, error: float) -> None:
        assert column in COLUMNS, column
        row = _errors.setdefault(reference.name, {})
        row[column] = max(error, row.get(column, 0.0))

    return put


def _table() -> str:
    lines = [f"| model | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for name, row in sorted(_errors.items()):
        lines.append(f"| {name} | {' | '.join(_shown(column, row.get(column)) for column in COLUMNS)} |")
    return "\n".join(lines)


def _shown(column: str, error: float | None) -> str:
    if error is None:
        return ""
    return f"{error:.0f}" if column == "matches" else f"{error:.1e}" if error else "0"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not _errors:
        return
    terminalreporter.section("largest error by tensor (losses, gradients, statistics: relative)")
    terminalreporter.write_line(_table())
    if page := os.environ.get("DETLOOM_PARITY_TABLE"):
        text = Path(page).read_text("utf-8")
        start, end = text.index(TABLE_START) + len(TABLE_START), text.index(TABLE_END)
        Path(page).write_text(f"{text[:start]}\n{_table()}\n{text[end:]}", "utf-8")
