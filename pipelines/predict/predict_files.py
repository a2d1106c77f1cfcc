"""Run a model over many images in batches; write COCO results, images with boxes, or lines."""

import collections
import contextlib
import itertools
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Protocol, TypeVar

import numpy as np
from PIL import Image

from detloom.components.evaluator.coco_files import read_coco_ground_truth
from detloom.pipelines.predict.image_files import ImageFile
from detloom.pipelines.predict.image_limits import MAX_PIXELS
from detloom.schemas.contracts.detections import CLASSES
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import escape
from detloom.schemas.reading.replace_when_done import replace_when_done
from detloom.schemas.reading.text_file import write_text_file
from detloom.trainer_module.inference.encoded_image import EncodedImage
from detloom.trainer_module.inference.prediction import Prediction
from detloom.trainer_module.inference.runtime import FailedCallError, Rows, Runtime, detect_each
from detloom.trainer_module.runtime.host_devices import usable_cpus
from detloom.trainer_module.runtime.progress import show_progress

_LOGGER = logging.getLogger("detloom")
_MAX_NAMED = 3  # file names per message
_MAX_READ_AT_ONCE = 8  # files, whose numbers of pixels are not known yet


class ResultFile(Protocol):
    """A file, or a folder of files, that gets the detections of each image while it is open."""

    def opened(self) -> contextlib.AbstractContextManager[None]: ...

    def add(self, name: str, prediction: Prediction) -> None: ...


class CocoOutput:
    """A COCO results file, which gets its final name only when it is complete.

    Without ground truth, a second file lists the image ids, as an annotation file without annotations.
    """

    def __init__(
        self, path: Path, ids_by_name: Mapping[str, int], label_map: LabelMap, min_score: float, *, has_own_ids: bool
    ) -> None:
        self._path, self._ids_by_name, self._label_map = path, ids_by_name, label_map
        self._min_score, self._has_own_ids = min_score, has_own_ids
        self._images: list[dict[str, Any]] = []
        self._separator = "\n"

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Open the file for `add`."""
        with replace_when_done(self._path) as partial:
            with partial.open("x", encoding="utf-8") as self._file:
                self._file.write("[")
                yield
                self._file.write("\n]\n")
            if self._has_own_ids:
                self._write_images()

    def add(self, name: str, prediction: Prediction) -> None:
        image_id, kept = self._ids_by_name[name], prediction.above(self._min_score)
        for row in kept.to_coco(image_id):
            self._file.write(self._separator + json.dumps(row, allow_nan=False))
            self._separator = ",\n"
        if self._has_own_ids:
            height, width = prediction.image_rgb.shape[:2]
            self._images.append({"id": image_id, "file_name": name, "height": height, "width": width})

    def _write_images(self) -> None:
        categories = [{"id": class_id, "name": name} for class_id, name in self._label_map.names_by_id]
        content = {"images": self._images, "annotations": [], "categories": categories}
        write_text_file(self._path.with_suffix(".images.json"), json.dumps(content, indent=1) + "\n")


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """The destinations of detections.

    Attributes:
        is_single: the user named one image: an error of it is raised, and its lines do not name it.
        result_files: get all detections of each image, and keep those that they want.
        path: file for the single image with boxes, or folder for images with boxes, under the names of their sources.
        min_score: minimum score of objects in images, lines and counts.
        print_line: is called with a line for each object.
    """

    is_single: bool
    result_files: Sequence[ResultFile]
    path: Path | None
    min_score: float
    print_line: Callable[[str], None] | None


@dataclass
class Counts:
    """Counts of images and objects so far; `best_score` is that of all detections, also of those below the minimum."""

    num_images: int = 0
    num_broken: int = 0
    num_by_class: collections.Counter[str] = field(default_factory=collections.Counter)
    best_score: float = 0.0

    def add(self, prediction: Prediction, shown: Prediction) -> None:
        """Count an image, with all its detections and those that have the minimum score."""
        self.num_images += 1
        self.num_by_class.update(shown.class_names)
        self.best_score = max(self.best_score, prediction.scores.max(initial=0.0))

    def sentence(self, min_score: float) -> str:
        classes = ", ".join(f"{escape(name)} {count}" for name, count in self.num_by_class.most_common())
        detail = f" ({classes})" if classes else ""
        broken = f"; {self.num_broken} more could not be read" if self.num_broken else ""
        num_objects = sum(self.num_by_class.values())
        objects = f"{num_objects} object{'' if num_objects == 1 else 's'}"
        images = f"{self.num_images} image{'' if self.num_images == 1 else 's'}"
        best = "" if num_objects or not self.best_score else f"; the best score is {self.best_score:.3f} (--min-score)"
        return f"{objects} with a score of at least {min_score:g}{detail} in {images}{broken}{best}"


def match_ground_truth(
    path: Path, ground_truth: Path, images: Sequence[ImageFile], label_map: LabelMap, min_score: float
) -> tuple[CocoOutput, list[ImageFile]]:
    """Match images with the ground truth; return the results file, and the images with their declared sizes.

    An image is matched by its full name, otherwise by its last part if that is unique in the ground truth.

    Raises:
        InputError: if the ground truth lacks an image or a class.
    """
    truth, where = read_coco_ground_truth(ground_truth), escape(str(ground_truth))
    known = dict(truth.split.label_map.names_by_id)
    for class_id, name in label_map.names_by_id:
        if known.get(class_id) != name:
            got = f"{class_id} is {known[class_id]!r}" if class_id in known else f"{class_id} is missing"
            raise InputError(
                f"{where}: categories: {got}, but the model has {class_id} as {name!r}; use its annotations."
            )
    by_full = dict(zip(truth.file_names, truth.split.ground_truth, strict=True))
    num_by_last = collections.Counter(PurePosixPath(name).name for name in by_full)
    by_last = {PurePosixPath(name).name: each for name, each in by_full.items()}
    ids: dict[str, int] = {}
    taken: set[int] = set()
    sized, unknown = [], []
    for image in images:
        last = PurePosixPath(image.name).name
        labels = by_full.get(image.name) or (by_last[last] if num_by_last[last] == 1 else None)
        if labels is None or labels.image_id in taken:
            unknown.append(escape(image.name))
            continue
        ids[image.name] = labels.image_id
        taken.add(labels.image_id)
        sized.append(replace(image, declared_hw=labels.image_hw))
    if unknown:
        named = ", ".join(unknown[:_MAX_NAMED]) + (", ..." if len(unknown) > _MAX_NAMED else "")
        raise InputError(f"{where}: lacks {len(unknown)} of {len(images)} images ({named}); leave them out.")
    return CocoOutput(path, ids, label_map, min_score, has_own_ids=False), sized


def predict_files(
    runtime: Runtime,
    label_map: LabelMap,
    images: Sequence[ImageFile],
    outputs: Outputs,
    batch_size: int,
    *,
    has_progress: bool,
) -> Counts:
    """Run the model over all images; report and count an image that cannot be read.

    Raises:
        InputError, OSError: an output cannot be written. Images and YOLO labels that were written stay; no other
            results are written.
    """
    counts = Counts()
    with contextlib.ExitStack() as stack:
        for result_file in outputs.result_files:
            stack.enter_context(result_file.opened())
        reporter = None
        if has_progress:
            reporter = stack.enter_context(show_progress("Images", len(images), unit="images"))
        for image, prediction in predict_in_batches(runtime, label_map, images, batch_size):
            if isinstance(prediction, InputError):
                if outputs.is_single:
                    raise prediction
                counts.num_broken += 1
                _LOGGER.warning("skipped: %s", prediction)
            else:
                _write_outputs(image, prediction, outputs, counts)
            if reporter is not None:
                reporter.advance(**({"broken": counts.num_broken} if counts.num_broken else {}))
    return counts


class Readable(Protocol):
    """An image that can be read: `shown` is its name in messages, `read` returns it encoded with its pixel count."""

    @property
    def shown(self) -> str: ...

    def read(self) -> tuple[bytes, int]: ...


_Image = TypeVar("_Image", bound=Readable)
_Batch = list[tuple[_Image, EncodedImage | InputError]]
_Read = tuple[_Image, EncodedImage | InputError, int]  # with its number of pixels


def predict_in_batches(
    runtime: Runtime, label_map: LabelMap, images: Iterable[_Image], batch_size: int
) -> Iterator[tuple[_Image, Prediction | InputError]]:
    """Yield results in order; a batch has at most `batch_size` images, and only one if they are large.

    The caller's thread takes the images of the next batch before the model runs; then threads read and decode them.
    """
    remaining = iter(images)
    with ThreadPoolExecutor(usable_cpus()) as pool, ThreadPoolExecutor(1) as thread:
        following = thread.submit(_load_batch, pool, [], list(itertools.islice(remaining, batch_size)))
        while (loaded := following.result())[0]:
            batch, read, unread = loaded
            unread.extend(itertools.islice(remaining, batch_size - len(read) - len(unread)))
            following = thread.submit(_load_batch, pool, read, unread)
            yield from _predict_batch(runtime, label_map, batch)


def _load_batch(
    pool: Executor, read: list[_Read[_Image]], unread: list[_Image]
) -> tuple[_Batch[_Image], list[_Read[_Image]], list[_Image]]:
    """Return a batch, decoded, and what is left of both lists; stop reading at the number of pixels of a batch."""
    while unread and sum(num_pixels for *_, num_pixels in read) <= MAX_PIXELS:
        read = [*read, *pool.map(_read, unread[:_MAX_READ_AT_ONCE])]
        unread = unread[_MAX_READ_AT_ONCE:]
    totals = itertools.accumulate(num_pixels for *_, num_pixels in read)
    size = max(1, sum(total <= MAX_PIXELS for total in totals))
    return list(pool.map(_decode, read[:size])), read[size:], unread


def _read(image: _Image) -> _Read[_Image]:
    """Return the image and its number of pixels, or why it cannot be read."""
    try:
        image_bytes, num_pixels = image.read()
        return image, EncodedImage(image_bytes, image.shown), num_pixels
    except InputError as error:
        return image, error, 0


def _decode(read: _Read[_Image]) -> tuple[_Image, EncodedImage | InputError]:
    """Decode an image, which keeps its pixels; return why it cannot be decoded."""
    image, encoded, _ = read
    try:
        if isinstance(encoded, EncodedImage):
            _ = encoded.rgb
        return image, encoded
    except InputError as error:
        return image, error


def _predict_batch(
    runtime: Runtime, label_map: LabelMap, batch: _Batch[_Image]
) -> Iterator[tuple[_Image, Prediction | InputError]]:
    found = detect_each(runtime, [encoded for _, encoded in batch if isinstance(encoded, EncodedImage)])
    for image, encoded in batch:
        if isinstance(encoded, InputError):
            yield image, encoded
        else:
            yield image, _build_prediction(encoded, next(found), label_map)


def _build_prediction(image: EncodedImage, rows: Rows | InputError, label_map: LabelMap) -> Prediction | InputError:
    if isinstance(rows, FailedCallError):
        if rows.is_refusal:
            return InputError(f"{image.name}: the model cannot read the image ({rows}).")
        raise InputError(f"{image.name}: the model failed ({rows}).")
    if isinstance(rows, InputError):
        raise rows
    if not all(np.isfinite(value).all() for value in rows.values()):
        return InputError(f"{image.name}: the model returned detections that contain NaN or infinity.")
    return Prediction(image.rgb, rows, tuple(map(label_map.name_of, rows[CLASSES].tolist())))


def _write_outputs(image: ImageFile, prediction: Prediction, outputs: Outputs, counts: Counts) -> None:
    for result_file in outputs.result_files:
        result_file.add(image.name, prediction)
    shown = prediction.above(outputs.min_score)
    counts.add(prediction, shown)
    if outputs.print_line is not None:
        for line in shown.lines():
            outputs.print_line(line if outputs.is_single else f"{escape(image.name)}: {line}")
    if outputs.path is not None:
        save_image(shown, image.path, outputs.path if outputs.is_single else outputs.path / image.name)


def save_image(prediction: Prediction, source: Path, path: Path) -> None:
    """Draw the boxes and write the image atomically; create its folder.

    Raises:
        InputError: if it cannot be written, or is the source itself.
    """
    if os.path.realpath(path) == os.path.realpath(source):
        raise InputError(
            f"{escape(str(path))}: this is the input image, which would be overwritten; choose another --output."
        )
    kind = Image.registered_extensions().get(path.suffix.lower())
    try:
        if kind is None:
            raise ValueError(f"unknown file extension: {path.suffix}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_when_done(path) as partial:
            prediction.draw().save(partial, format=kind)
    # no space left, no such folder, or a format that Pillow cannot write
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{escape(str(path))}: the image cannot be written ({escape(str(error))}).") from None
