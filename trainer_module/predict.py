"""Run an exported model: the same SavedModel that is evaluated and served, never the one in memory."""

import io
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
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
from detloom.schemas.example_keys import IMAGE_ENCODED
from detloom.schemas.label_map import LabelMap, parse_label_map
from detloom.trainer_module.draw import decode_image_rgb, draw_detections

_Rows = tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.int64]]  # boxes, scores, class ids


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
        self._signature = signature
        self._in_pixels = has_pixel_boxes(model_dir)

    def __call__(self, batch: Sequence[bytes]) -> list[_Rows]:
        """Detections of each item of `batch`, without padding rows; boxes relative to the picture."""
        outputs = self._call(**{names.SIGNATURE_INPUTS[self._signature]: tf.constant(list(batch))})
        boxes, scores, classes, counts = (outputs[name].numpy() for name in names.OUTPUT_NAMES)
        if len(boxes) != len(batch):
            raise InputError(f"the model answered {len(batch)} images with {len(boxes)} sets of detections.")
        if self._in_pixels:
            boxes = boxes / np.array([[self._image_hw(item) * 2] for item in batch], np.float32)
        return [
            (boxes[row, :count], scores[row, :count], np.rint(classes[row, :count]).astype(np.int64))
            for row, count in enumerate(np.rint(counts).astype(int))
        ]

    def _image_hw(self, item: bytes) -> tuple[int, int]:
        """Of an encoded picture, or of the one in a serialized tf.Example."""
        image_bytes = item
        if self._signature == names.SIGNATURE_EXAMPLES:
            image_bytes = tf.train.Example.FromString(item).features.feature[IMAGE_ENCODED].bytes_list.value[0]
        with Image.open(io.BytesIO(image_bytes)) as image:
            width, height = image.size
        return height, width


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
        (rows,) = self._detect([image_bytes])
        if isinstance(rows, str):
            raise InputError(f"{name}: the model cannot read the image ({rows}).")
        return self._build_prediction(image_rgb, *rows)

    def _build_prediction(
        self,
        image_rgb: npt.NDArray[np.uint8],
        boxes: npt.NDArray[np.float32],
        scores: npt.NDArray[np.float32],
        class_ids: npt.NDArray[np.int64],
    ) -> Prediction:
        class_names = tuple(self.label_map.name_of(class_id) for class_id in class_ids.tolist())
        return Prediction(image_rgb, boxes, scores, class_ids, class_names)

    def predict_batch(self, images: Sequence[bytes], image_names: Sequence[str]) -> Iterator[Prediction | InputError]:
        """In order, what was found in each JPEG or PNG, or why it cannot be read.

        The model sees all of them at once, and one by one where it refuses that; pictures are decoded as they are asked
        for. Their sizes should have been looked at: the model decodes whatever size a header states.
        """
        for image_bytes, name, rows in zip(images, image_names, self._detect(images), strict=True):
            try:
                image_rgb = decode_image_rgb(image_bytes, name)
            except InputError as error:
                yield error
                continue
            if isinstance(rows, str):
                yield InputError(f"{name}: the model cannot read the image ({rows}).")
            else:
                yield self._build_prediction(image_rgb, *rows)

    def _detect(self, images: Sequence[bytes]) -> list[_Rows | str]:
        """Detections of each image, or what the model said against it."""
        try:
            return list(self._signature(images))
        except tf.errors.InvalidArgumentError as error:
            if len(images) == 1:
                return [_first_line(error)]
            return [rows for image_bytes in images for rows in self._detect([image_bytes])]

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
    numbered = (path for path in model_dir.iterdir() if path.name.isdecimal())
    versions = sorted(numbered, key=lambda path: int(path.name), reverse=True)
    for folder in (model_dir, model_dir / names.SERVING_FOLDER, *versions):
        if (folder / names.SAVED_MODEL_FILE).is_file():
            return folder
    raise InputError(f"{model_dir}: holds neither {names.SAVED_MODEL_FILE} nor a numbered version folder with one.")


def check_signature(model_dir: str, signature: str) -> None:
    """Read only the head of the SavedModel.

    Raises:
        InputError: no SavedModel, or one without that signature, input or outputs.
    """
    signatures = read_signatures(model_dir)
    if signature not in signatures:
        known = sorted(signatures)
        raise InputError(f"{model_dir}: the SavedModel has no signature '{signature}', only {known}; export it again.")
    wanted, found = names.SIGNATURE_INPUTS[signature], sorted(signatures[signature].inputs)
    missing = sorted(set(names.OUTPUT_NAMES) - set(signatures[signature].outputs))
    if found != [wanted] or missing:
        detail = f"lacks the outputs {missing}" if missing else f"takes {found}, not ['{wanted}']"
        raise InputError(f"{model_dir}: the signature '{signature}' {detail}; export the model again.")


def read_signatures(model_dir: str) -> dict[str, Any]:
    """The SignatureDef of each signature that is served, by its name; reads only the head of the SavedModel.

    Raises:
        InputError: no SavedModel.
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
    return {name: graph[name] for graph in graphs[:1] for name in graph if not name.startswith("__")}


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


def has_pixel_boxes(model_dir: str) -> bool:
    """Whether the model says boxes in pixels of the picture instead of shares of it."""
    return _read_contract(model_dir).get("box_units") == "pixels"


def _read_contract(model_dir: str) -> dict[str, Any]:
    """The contract in the SavedModel's assets; empty for a model from before there was one."""
    path = f"{model_dir}/assets/{names.ASSET_CONTRACT}"
    if not tf.io.gfile.exists(path):
        return {}
    try:
        with tf.io.gfile.GFile(path, "r") as file:
            contract = json.loads(file.read())
    except (tf.errors.OpError, ValueError, RecursionError):
        contract = None
    if not isinstance(contract, dict):
        raise InputError(f"{path}: the model's contract cannot be read; export the model again.")
    return contract


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
