"""Run an exported model: the same SavedModel that is evaluated and served, never the one in memory."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from google.protobuf.message import DecodeError
from PIL import Image
from tensorflow.core.protobuf import saved_model_pb2

from detloom.schemas import detections as names
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap, parse_label_map
from detloom.trainer_module.draw import decode_image_rgb, draw_detections


@dataclass(frozen=True, eq=False)
class Prediction:
    """One picture and what was found in it, by descending score.

    Attributes:
        image_rgb: uint8 [H, W, 3], the decoded picture.
        boxes_yxyx_rel: float32 [N, 4]; `scores`, `class_ids`, `class_names` have one entry for each.
    """

    image_rgb: npt.NDArray[np.uint8]
    boxes_yxyx_rel: npt.NDArray[np.float32]
    scores: npt.NDArray[np.float32]
    class_ids: npt.NDArray[np.int64]
    class_names: tuple[str, ...]

    def above(self, min_score: float) -> "Prediction":
        """Only the objects with at least that score."""
        keep = self.scores >= min_score
        kept_names = tuple(itertools.compress(self.class_names, keep.tolist()))
        return Prediction(
            self.image_rgb, self.boxes_yxyx_rel[keep], self.scores[keep], self.class_ids[keep], kept_names
        )

    def lines(self) -> list[str]:
        """One line of text for each object: class name, score, and left, top, right, bottom in pixels."""
        height, width = self.image_rgb.shape[:2]
        boxes_yxyx_px = np.rint(self.boxes_yxyx_rel * [height, width, height, width]).astype(int).tolist()
        return [
            f"{name} {score:.3f}  left {xmin} top {ymin} right {xmax} bottom {ymax}"
            for name, score, (ymin, xmin, ymax, xmax) in zip(self.class_names, self.scores, boxes_yxyx_px, strict=True)
        ]

    def draw(self) -> Image.Image:
        """The picture with boxes and labels."""
        return draw_detections(self.image_rgb, self.boxes_yxyx_rel, self.class_ids, self.class_names, self.scores)


class LoadedSignature:
    """One signature of a loaded SavedModel; call it with a batch, get a list of (boxes, scores, class ids) back."""

    def __init__(self, model_dir: str, signature: str) -> None:
        """Load the model; `check_signature` says what is wrong with it."""
        check_signature(model_dir, signature)
        try:
            self._model = tf.saved_model.load(model_dir)  # kept: its variables live as long as it does
        except (OSError, ValueError, tf.errors.OpError) as error:
            raise InputError(f"{model_dir}: the SavedModel cannot be loaded ({_first_line(error)}).") from None
        self._call: Callable[..., Any] = self._model.signatures[signature]
        self._input = names.SIGNATURE_INPUTS[signature]

    def __call__(
        self, batch: Sequence[bytes]
    ) -> list[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.int64]]]:
        """Detections of each item of `batch`, without padding rows."""
        outputs = self._call(**{self._input: tf.constant(list(batch))})
        boxes, scores, classes, counts = (outputs[name].numpy() for name in names.OUTPUT_NAMES)
        if len(boxes) != len(batch):
            raise InputError(f"the model answered {len(batch)} images with {len(boxes)} sets of detections.")
        return [
            (boxes[row, :count], scores[row, :count], np.rint(classes[row, :count]).astype(np.int64))
            for row, count in enumerate(np.rint(counts).astype(int))
        ]


class ExportedDetector:
    """An exported model with its label map."""

    def __init__(self, model_dir: str) -> None:
        self.model_dir = model_dir
        self.label_map: LabelMap = read_exported_label_map(model_dir)
        self._signature = LoadedSignature(model_dir, names.SIGNATURE_ENCODED)

    def predict_bytes(self, image_bytes: bytes, name: str = "image") -> Prediction:
        """Find objects in one JPEG or PNG.

        Raises:
            InputError: naming `name`, when the image is broken or of another format.
        """
        image_rgb = decode_image_rgb(image_bytes, name)
        try:
            ((boxes, scores, class_ids),) = self._signature([image_bytes])
        except tf.errors.InvalidArgumentError as error:
            raise InputError(f"{name}: the model cannot read the image ({_first_line(error)}).") from None
        class_names = tuple(self.label_map.name_of(class_id) for class_id in class_ids.tolist())
        return Prediction(image_rgb, boxes, scores, class_ids, class_names)

    def predict_file(self, path: Path) -> Prediction:
        """As `predict_bytes`; also refuses a file that cannot be read."""
        try:
            image_bytes = Path(path).read_bytes()
        except OSError as error:
            raise InputError(f"{path}: the image cannot be read ({error.strerror}).") from None
        return self.predict_bytes(image_bytes, str(path))


def load_detector(model_dir: Path) -> ExportedDetector:
    """Load an exported SavedModel: its folder, a Model artifact, or a folder of numbered versions (takes the highest).

    Raises:
        InputError: one sentence that names the folder and what it lacks.
    """
    return ExportedDetector(str(find_saved_model(Path(model_dir))))


def find_saved_model(model_dir: Path) -> Path:
    """The folder with `saved_model.pb`: `model_dir`, its `Format-Serving`, or its highest numbered complete version."""
    if not model_dir.is_dir():
        raise InputError(f"{model_dir}: no such folder; give an exported SavedModel or a folder of model versions.")
    versions = sorted((int(path.name) for path in model_dir.iterdir() if path.name.isdecimal()), reverse=True)
    for folder in (model_dir, model_dir / names.SERVING_FOLDER, *(model_dir / str(version) for version in versions)):
        if (folder / names.SAVED_MODEL_FILE).is_file():
            return folder
    raise InputError(f"{model_dir}: holds neither {names.SAVED_MODEL_FILE} nor a numbered version folder with one.")


def check_signature(model_dir: str, signature: str) -> None:
    """Read only the head of the SavedModel.

    Raises:
        InputError: no SavedModel, or one without that signature, input or outputs.
    """
    path = f"{model_dir}/{names.SAVED_MODEL_FILE}"
    saved_model = saved_model_pb2.SavedModel()
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            saved_model.ParseFromString(file.read())
    except tf.errors.OpError:
        raise InputError(f"{model_dir}: no SavedModel ({names.SAVED_MODEL_FILE} cannot be read).") from None
    except DecodeError:
        raise InputError(f"{path}: is not a SavedModel; export the model again.") from None
    graphs = [graph.signature_def for graph in saved_model.meta_graphs if "serve" in graph.meta_info_def.tags]
    if not graphs or signature not in graphs[0]:
        known = sorted(name for graph in graphs for name in graph if not name.startswith("__"))
        raise InputError(f"{model_dir}: the SavedModel has no signature '{signature}', only {known}; export it again.")
    wanted, found = names.SIGNATURE_INPUTS[signature], sorted(graphs[0][signature].inputs)
    missing = sorted(set(names.OUTPUT_NAMES) - set(graphs[0][signature].outputs))
    if found != [wanted] or missing:
        detail = f"lacks the outputs {missing}" if missing else f"takes {found}, not ['{wanted}']"
        raise InputError(f"{model_dir}: the signature '{signature}' {detail}; export the model again.")


def read_exported_label_map(model_dir: str) -> LabelMap:
    """The label map in the SavedModel's assets.

    Raises:
        InputError: it is missing or unreadable.
    """
    path = f"{model_dir}/assets/{names.ASSET_LABEL_MAP}"
    try:
        with tf.io.gfile.GFile(path, "r") as file:
            text = file.read()
    except (tf.errors.OpError, UnicodeDecodeError):
        raise InputError(f"{path}: the model's label map cannot be read; is this an exported detector?") from None
    return parse_label_map(text, where=path)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
