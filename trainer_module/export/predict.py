"""Run an exported model: the SavedModel that is evaluated and served, not the model in memory."""

import io
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from google.protobuf.message import DecodeError
from PIL import Image
from tensorflow.core.protobuf import saved_model_pb2

from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.label_map import LabelMap, parse_label_map
from detloom.schemas.contracts.version_names import parse_versions
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import escape
from detloom.trainer_module.boxes.masks import encode_box_masks, paste_masks
from detloom.trainer_module.data.records import ExampleFeatures
from detloom.trainer_module.detectors.detector import Keypoints
from detloom.trainer_module.drawing.draw import decode_image_rgb, draw_rows
from detloom.trainer_module.evaluation.coco_images import ImageDetections, format_coco_results
from detloom.trainer_module.weights.checkpoint_index import check_index

_NUMBERS = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)  # types that an output may have
Rows = dict[str, npt.NDArray[Any]]
"""Detections of one image, without padding; see `schemas/contracts/detections.py`."""
MASK_COUNTS = "mask_counts"  # replaces the masks over boxes, see `with_image_masks`


@dataclass(frozen=True, eq=False)
class Prediction:
    """One image and its detections, in descending order of score.

    Attributes:
        image_rgb: uint8 [H, W, 3], the decoded image.
        rows: the detections; boxes are relative to the image.
        class_names: one for each detection.
    """

    image_rgb: npt.NDArray[np.uint8]
    rows: Rows
    class_names: tuple[str, ...]

    def __repr__(self) -> str:
        height, width = self.image_rgb.shape[:2]
        counts = ", ".join(f"{name} {count}" for name, count in Counter(self.class_names).most_common())
        scores = f"; scores {self.scores.max():.3f} to {self.scores.min():.3f}" if counts else ""
        return f"Prediction({width} x {height} px, {len(self.scores)} detections{': ' * bool(counts)}{counts}{scores})"

    def _repr_png_(self) -> bytes:
        """Return the image with its detections, for notebooks."""
        buffer = io.BytesIO()
        self.draw().save(buffer, "PNG")
        return buffer.getvalue()

    @property
    def boxes_yxyx_rel(self) -> npt.NDArray[np.float32]:
        """Boxes [N, 4]."""
        return self.rows[names.BOXES]

    @property
    def boxes_yxyx_px(self) -> npt.NDArray[np.float32]:
        """Boxes [N, 4] in pixels of the image."""
        height, width = self.image_rgb.shape[:2]
        return self.boxes_yxyx_rel * np.array([height, width, height, width], np.float32)

    @property
    def scores(self) -> npt.NDArray[np.float32]:
        """Scores [N]."""
        return self.rows[names.SCORES]

    @property
    def class_ids(self) -> npt.NDArray[np.int64]:
        """Label-map ids [N]."""
        return self.rows[names.CLASSES]

    @property
    def masks_NHW(self) -> npt.NDArray[np.bool_] | None:
        """Masks over the image, bool [N, H, W]; None if the model has none."""
        masks = self.rows.get(names.MASKS)
        if masks is None:
            return None
        height, width = self.image_rgb.shape[:2]
        return paste_masks(self.boxes_yxyx_rel, masks, (height, width))

    @property
    def keypoints_yx_rel(self) -> npt.NDArray[np.float32] | None:
        """Keypoints [N, P, 2], relative to the image; None if the model has none."""
        return self.rows.get(names.KEYPOINTS)

    @property
    def keypoint_scores(self) -> npt.NDArray[np.float32] | None:
        """Scores of the keypoints [N, P], 0 to 1; 0 for a class without keypoints. None if the model has none."""
        return self.rows.get(names.KEYPOINT_SCORES)

    def above(self, min_score: float) -> "Prediction":
        """Return only the detections with at least this score."""
        is_kept = self.scores >= min_score
        rows = {name: value[is_kept] for name, value in self.rows.items()}
        return Prediction(self.image_rgb, rows, tuple(itertools.compress(self.class_names, is_kept.tolist())))

    def lines(self) -> list[str]:
        """Return a line of text for each detection: class name, score, and left, top, right, bottom in pixels."""
        boxes_yxyx_px = np.rint(self.boxes_yxyx_px).astype(int).tolist()
        return [
            f"{escape(name)} {score:.3f}  left {xmin} top {ymin} right {xmax} bottom {ymax}"
            for name, score, (ymin, xmin, ymax, xmax) in zip(self.class_names, self.scores, boxes_yxyx_px, strict=True)
        ]

    def draw(self) -> Image.Image:
        """Draw the detections on the image: boxes, and masks and keypoints if the model has them."""
        return draw_rows(self.image_rgb, self.rows, self.class_names)

    def to_coco(self, image_id: int = 0) -> list[dict[str, Any]]:
        """Return a row of a COCO results file for each detection: `bbox` is left, top, width, height in pixels."""
        height, width = self.image_rgb.shape[:2]
        return format_coco_results([self.found(image_id)], {image_id: (height, width)})

    def found(self, image_id: int = 0) -> ImageDetections:
        """Return the detections with masks over the image."""
        return detections_of(with_image_masks(self.rows, self.image_rgb.shape[:2]), image_id)


def with_image_masks(rows: Rows, image_hw: tuple[int, ...]) -> Rows:
    """Replace masks over boxes by run lengths over the image, which need little memory; other rows are unchanged."""
    if names.MASKS not in rows:
        return rows
    others = {name: value for name, value in rows.items() if name != names.MASKS}
    height, width = image_hw
    return {**others, MASK_COUNTS: encode_box_masks(rows[names.BOXES], rows[names.MASKS], (height, width))}


def detections_of(rows: Rows, image_id: int) -> ImageDetections:
    """Return rows of `with_image_masks` as detections of an image."""
    return ImageDetections(
        image_id,
        rows[names.BOXES],
        rows[names.SCORES],
        rows[names.CLASSES],
        mask_counts=rows.get(MASK_COUNTS),
        keypoints_yx_rel=rows.get(names.KEYPOINTS),
        keypoint_scores=rows.get(names.KEYPOINT_SCORES),
    )


def check_outputs(
    outputs: Mapping[str, npt.NDArray[Any]], specification: Mapping[str, names.Output], sizes: Mapping[str | int, int]
) -> None:
    """Check type and shape of the outputs for a batch, and the number of detections.

    Args:
        sizes: those that are known, by letter of `schemas/contracts/detections.py`.

    Raises:
        ValueError: with the output, what it is and what is allowed.
    """
    known = dict(sizes)
    for name in filter(outputs.__contains__, specification):
        value, shape = outputs[name], specification[name].shape
        fits = value.dtype.kind in "fiu" and value.ndim == len(shape)
        for size, got in zip(shape, value.shape, strict=False):
            fits = fits and got == known.setdefault(size, size if isinstance(size, int) else got)
        if not fits:
            allowed = f"numbers [{', '.join(str(known.get(size, size)) for size in shape)}]"
            raise ValueError(f"the model returned {name} as {value.dtype} {list(value.shape)}, allowed: {allowed}")
    counts = outputs.get(names.NUM_DETECTIONS)
    if counts is not None and not ((counts >= 0) & (counts <= known["M"])).all():
        raise ValueError(f"the model returned {names.NUM_DETECTIONS} {counts.tolist()}, allowed: 0 to {known['M']}")


def split_rows(outputs: Mapping[str, npt.NDArray[Any]]) -> list[Rows]:
    """Split the outputs of a batch into the detections of each image, without padding; class ids become int64."""
    counts = np.rint(outputs[names.NUM_DETECTIONS]).astype(int)
    columns = {name: value for name, value in outputs.items() if name != names.NUM_DETECTIONS}
    columns[names.CLASSES] = np.rint(columns[names.CLASSES]).astype(np.int64)
    return [{name: value[i, :count] for name, value in columns.items()} for i, count in enumerate(counts)]


class LoadedSignature:
    """One signature of a loaded SavedModel: a function from a batch to a list of detections."""

    def __init__(self, model_dir: str, signature: str) -> None:
        """Load the model; see `check_signature` for errors."""
        check_signature(model_dir, signature)
        self._model, self._call = load_saved_model(model_dir, signature)  # kept alive: it owns the variables
        self._model_dir, self._signature = model_dir, signature
        self._in_pixels = has_pixel_boxes(model_dir)

    def __call__(self, batch: Sequence[bytes]) -> list[Rows]:
        """Detect objects in each item of `batch`; boxes are relative to the image."""
        tensors = self._call(**{names.SIGNATURE_INPUTS[self._signature]: tf.constant(list(batch))})
        outputs = {name: tensors[name].numpy() for name in names.OUTPUTS if name in tensors}
        try:
            check_outputs(outputs, names.OUTPUTS, {"B": len(batch)})
        except ValueError as error:
            raise InputError(f"{self._model_dir}: {error}; export the model again.") from None
        boxes = outputs[names.BOXES]
        if self._in_pixels:
            hw_B12 = np.array([[self._image_hw(item)] for item in batch], np.float32)
            outputs[names.BOXES] = boxes / np.tile(hw_B12, 2)
            if names.KEYPOINTS in outputs:
                outputs[names.KEYPOINTS] = outputs[names.KEYPOINTS] / hw_B12[:, np.newaxis]
        return split_rows(outputs)

    def _image_hw(self, item: bytes) -> tuple[int, int]:
        """Return the size of an encoded image, or of the image in a serialized tf.Example."""
        is_example = self._signature == names.SIGNATURE_EXAMPLES
        image_bytes = ExampleFeatures(item).image_bytes if is_example else item
        with Image.open(io.BytesIO(image_bytes)) as image:
            width, height = image.size
        return height, width


class ExportedDetector:
    """An exported model with its label map."""

    def __init__(self, model_dir: str) -> None:
        self.model_dir = model_dir
        self.label_map: LabelMap = read_exported_label_map(model_dir)
        self._signature = LoadedSignature(model_dir, names.SIGNATURE_ENCODED)

    def predict_batch(self, images: Sequence[bytes], image_names: Sequence[str]) -> Iterator[Prediction | InputError]:
        """Yield, in order, the prediction for each JPEG or PNG, or the error why it cannot be read.

        The model gets all images at once, or one by one if it refuses the batch. The caller must check the image sizes:
        the model decodes an image of any size that a header states.
        """
        for image_bytes, name, rows in zip(images, image_names, self._detect(images), strict=True):
            try:
                image_rgb = decode_image_rgb(image_bytes, name)
            except InputError as error:
                yield error
                continue
            if isinstance(rows, str):
                yield InputError(f"{name}: the model cannot read the image ({rows}).")
            elif not all(np.isfinite(value).all() for value in rows.values()):
                yield InputError(f"{name}: the model returned detections that contain NaN or infinity.")
            else:
                class_names = tuple(self.label_map.name_of(class_id) for class_id in rows[names.CLASSES].tolist())
                yield Prediction(image_rgb, rows, class_names)

    def _detect(self, images: Sequence[bytes]) -> list[Rows | str]:
        """Return the detections of each image, or the error message of the model."""
        try:
            return list(self._signature(images))
        except tf.errors.OpError as error:
            if len(images) == 1:
                return [reason_of_failed_call(error)]
            return [rows for image_bytes in images for rows in self._detect([image_bytes])]


def load_exported_detector(model_dir: Path) -> ExportedDetector:
    """Load an exported SavedModel from its folder, a Model artifact, or the highest version in a folder of versions.

    Raises:
        InputError: with the folder and what is missing.
    """
    return ExportedDetector(str(find_saved_model(Path(model_dir))))


def find_saved_model(model_dir: Path) -> Path:
    """Return the folder of `saved_model.pb`: `model_dir`, its `Format-Serving`, or its highest complete version."""
    if not model_dir.is_dir():
        raise InputError(f"{model_dir}: no such folder; pass an exported SavedModel or a folder of model versions.")
    versions = reversed(parse_versions(path.name for path in model_dir.iterdir()))
    for folder in (model_dir, model_dir / names.SERVING_FOLDER, *(model_dir / str(version) for version in versions)):
        if (folder / names.SAVED_MODEL_FILE).is_file():
            return folder
    raise InputError(f"{model_dir}: has neither {names.SAVED_MODEL_FILE} nor a numbered version folder with one.")


def load_saved_model(model_dir: str, signature: str) -> tuple[Any, Callable[..., Any]]:
    """Return a SavedModel, which owns the variables, and one signature; InputError if a file is missing or damaged."""
    try:
        if tf.io.gfile.exists(f"{model_dir}/variables/variables.index"):  # not in a model without variables
            check_index(f"{model_dir}/variables/variables")
        model = tf.saved_model.load(model_dir)
        return model, model.signatures[signature]
    except Exception as error:  # TensorFlow raises errors of many types for a damaged file
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise InputError(f"{model_dir}: the SavedModel cannot be loaded ({cause}).") from None


def check_signature(model_dir: str, signature: str) -> None:
    """Check for a signature with its input and outputs; reads only the head of the SavedModel.

    Raises:
        InputError: if there is no SavedModel, or it lacks the signature, the input or an output.
    """
    signatures = read_signatures(model_dir)
    if signature not in signatures:
        known = sorted(signatures)
        raise InputError(f"{model_dir}: the SavedModel has no signature '{signature}', only {known}; export it again.")
    expected, inputs = names.SIGNATURE_INPUTS[signature], sorted(signatures[signature].inputs)
    missing = sorted(set(names.OUTPUT_NAMES) - set(signatures[signature].outputs))
    if inputs != [expected] or missing:
        detail = f"lacks the outputs {missing}" if missing else f"takes {inputs}, not ['{expected}']"
        raise InputError(f"{model_dir}: the signature '{signature}' {detail}; export the model again.")
    if detail := _find_other_type(signatures[signature], signature):
        raise InputError(f"{model_dir}: the signature '{signature}' {detail}; export the model again.")


def _find_other_type(definition: Any, signature: str) -> str:
    """Return the first input or output with another type or number of dimensions than the contract; "" if none has."""
    known = [name for name in names.OUTPUTS if name in definition.outputs]
    checks: list[tuple[str, Any, tuple[str | int, ...], str, tuple[tf.DType, ...]]]
    checks = [(name, definition.outputs[name], names.OUTPUTS[name].shape, "numbers", _NUMBERS) for name in known]
    if signature != names.SIGNATURE_IMAGES:
        checks += [(name, info, ("B",), "text", (tf.string,)) for name, info in definition.inputs.items()]
    for name, info, shape, kind, types in checks:
        num_dimensions = None if info.tensor_shape.unknown_rank else len(info.tensor_shape.dim)
        if num_dimensions not in (None, len(shape)) or all(info.dtype != each.as_datatype_enum for each in types):
            got = f"type {info.dtype} with {num_dimensions} dimensions"
            return f"has {name} of {got}, not {kind} [{', '.join(map(str, shape))}]"
    return ""


def read_signatures(model_dir: str) -> dict[str, Any]:
    """Return the SignatureDef of each served signature, by name; reads only the head of the SavedModel.

    Raises:
        InputError: if there is no SavedModel.
    """
    path = f"{model_dir}/{names.SAVED_MODEL_FILE}"
    saved_model = saved_model_pb2.SavedModel()
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            saved_model.ParseFromString(file.read())
    except tf.errors.OpError:
        raise InputError(f"{model_dir}: no SavedModel ({names.SAVED_MODEL_FILE} cannot be read).") from None
    except DecodeError:
        raise InputError(f"{path}: not a SavedModel; export the model again.") from None
    graphs = [graph.signature_def for graph in saved_model.meta_graphs if "serve" in graph.meta_info_def.tags]
    return {name: graph[name] for graph in graphs[:1] for name in graph if not name.startswith("__")}


def read_exported_label_map(model_dir: str) -> LabelMap:
    """Read the label map in the assets of the SavedModel.

    Raises:
        InputError: if it is missing or unreadable.
    """
    path = f"{model_dir}/assets/{names.ASSET_LABEL_MAP}"
    try:
        with tf.io.gfile.GFile(path, "r") as file:
            text = file.read()
    except (tf.errors.OpError, UnicodeDecodeError):
        raise InputError(f"{path}: the model's label map cannot be read; is this an exported detector?") from None
    return parse_label_map(text, where=path)


def read_unknown_classes(model_dir: str) -> Literal["refuse", "drop"]:
    """Return `train_input.unknown_classes` of the model's configuration; "refuse" if it has none."""
    try:
        with tf.io.gfile.GFile(f"{model_dir}/assets/{names.ASSET_CONFIG}", "r") as file:
            is_dropped = json.loads(file.read())["train_input"]["unknown_classes"] == "drop"
    except (tf.errors.OpError, ValueError, KeyError, TypeError):
        return "refuse"
    return "drop" if is_dropped else "refuse"


def read_keypoints(model_dir: str) -> Keypoints | None:
    """Return the keypoints in the contract of a model; None if it has none.

    Raises:
        InputError: if the contract cannot be read.
    """
    written = _read_contract(model_dir).get("keypoints")
    if written is None:
        return None
    try:
        sigmas = tuple(float(sigma) for sigma in written["sigmas"])
        return Keypoints(str(written["class_name"]), tuple(map(str, written["names"])), sigmas)
    except (TypeError, KeyError, ValueError):
        raise InputError(
            f"{model_dir}: the keypoints in its contract cannot be read; export the model again."
        ) from None


def has_pixel_boxes(model_dir: str) -> bool:
    """Return True if boxes are in pixels of the image instead of relative to it."""
    return _read_contract(model_dir).get("box_units") == "pixels"


def _read_contract(model_dir: str) -> dict[str, Any]:
    """Read the contract in the assets of the SavedModel; {} for models that have none."""
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


def reason_of_failed_call(error: tf.errors.OpError) -> str:
    """Return the line of TensorFlow's message that states the reason: the last one before the names of nodes."""
    lines = str(error).partition("[[{{node")[0].strip().splitlines()
    return (lines or [type(error).__name__])[-1].strip()[:200]
