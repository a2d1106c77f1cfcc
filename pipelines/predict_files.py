"""A model over many pictures, a batch in memory at a time: COCO results, pictures with boxes, lines."""

import collections
import contextlib
import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import IO, Any

import click
from PIL import Image

from detloom.components.evaluator.coco_files import read_coco_ground_truth
from detloom.pipelines.image_files import ImageFile
from detloom.pipelines.serving.image_limits import MAX_PIXELS
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap
from detloom.schemas.redact import escape
from detloom.schemas.text_file import write_text_file
from detloom.trainer_module.coco_metrics import ImageDetections, format_coco_results
from detloom.trainer_module.predict import ExportedDetector, Prediction
from detloom.trainer_module.progress import Reporter, show_progress

_MAX_NAMED = 3  # file names in a message


class CocoOutput:
    """A COCO results file that has its name only when all is in it. A context.

    Without ground truth a second file says which image has which id, as an annotation file without annotations.
    """

    def __init__(
        self, path: Path, ids_by_name: Mapping[str, int], label_map: LabelMap, min_score: float, *, has_own_ids: bool
    ) -> None:
        self._path, self._ids_by_name, self._label_map = path, ids_by_name, label_map
        self._min_score, self._has_own_ids = min_score, has_own_ids
        self._partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
        self._images: list[dict[str, Any]] = []
        self._num_rows = 0

    def __enter__(self) -> "CocoOutput":
        try:
            self._file: IO[str] = self._partial.open("x", encoding="utf-8")
        except OSError as error:
            raise InputError(f"{self._path}: cannot be written ({error.strerror}).") from None
        self._file.write("[")
        return self

    def add(self, name: str, prediction: Prediction) -> None:
        image_id, kept = self._ids_by_name[name], prediction.above(self._min_score)
        height, width = prediction.image_rgb.shape[:2]
        found = ImageDetections(image_id, kept.boxes_yxyx_rel, kept.scores, kept.class_ids)
        for row in format_coco_results([found], {image_id: (height, width)}):
            self._file.write(f"{',' if self._num_rows else ''}\n{json.dumps(row)}")
            self._num_rows += 1
        if self._has_own_ids:
            self._images.append({"id": image_id, "file_name": name, "height": height, "width": width})

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            with self._file:
                if kind is None:
                    self._file.write("\n]\n")
                    self._file.flush()
                    os.fsync(self._file.fileno())
            if kind is None:
                self._write_images()
                self._partial.replace(self._path)
        except OSError as failure:
            raise InputError(f"{self._path}: cannot be written ({failure.strerror}).") from None
        finally:
            self._partial.unlink(missing_ok=True)

    def _write_images(self) -> None:
        if self._has_own_ids:
            categories = [{"id": class_id, "name": name} for class_id, name in self._label_map.names_by_id]
            content = {"images": self._images, "annotations": [], "categories": categories}
            write_text_file(self._path.with_suffix(".images.json"), json.dumps(content, indent=1) + "\n")


@dataclass(frozen=True)
class Outputs:
    """Where the detections go.

    Attributes:
        folder: for pictures with boxes, by the names of their sources.
        min_score: of pictures, lines and counts.
        print_line: gets a line for each object.
    """

    coco: CocoOutput | None
    folder: Path | None
    min_score: float
    print_line: Callable[[str], None] | None


@dataclass
class Counts:
    """What was done so far."""

    num_images: int = 0
    num_broken: int = 0
    num_by_class: collections.Counter[str] = field(default_factory=collections.Counter)

    def sentence(self, min_score: float) -> str:
        classes = ", ".join(f"{name} {count}" for name, count in self.num_by_class.most_common())
        detail = f" ({classes})" if classes else ""
        broken = f"; {self.num_broken} more could not be read" if self.num_broken else ""
        num_objects = sum(self.num_by_class.values())
        return (
            f"{num_objects} objects with a score of at least {min_score}{detail} in {self.num_images} pictures{broken}"
        )


def build_coco_output(path: Path, images: Sequence[ImageFile], label_map: LabelMap, min_score: float) -> CocoOutput:
    """Image ids are 1, 2, ..."""
    ids = {image.name: number for number, image in enumerate(images, start=1)}
    return CocoOutput(path, ids, label_map, min_score, has_own_ids=True)


def match_ground_truth(
    path: Path, ground_truth: Path, images: Sequence[ImageFile], label_map: LabelMap, min_score: float
) -> tuple[CocoOutput, list[ImageFile]]:
    """Image ids are those of the ground truth; the pictures come back with the sizes that it declares.

    A picture's name is looked for in full, then its last part alone, if only one image there has it.

    Raises:
        InputError: pictures or classes that the ground truth does not have.
    """
    truth, where = read_coco_ground_truth(ground_truth), escape(str(ground_truth))
    known = dict(truth.split.label_map.names_by_id)
    for class_id, name in label_map.names_by_id:
        if known.get(class_id) != name:
            got = f"{class_id} is {known[class_id]!r}" if class_id in known else f"there is no {class_id}"
            raise InputError(f"{where}: among its categories {got}, where the model has {name!r}; give its data's.")
    by_full = dict(zip(truth.file_names, truth.split.ground_truth, strict=True))
    num_by_last = collections.Counter(PurePosixPath(name).name for name in by_full)
    by_last = {PurePosixPath(name).name: each for name, each in by_full.items()}
    ids: dict[str, int] = {}
    taken: set[int] = set()
    sized, unknown = [], []
    for image in images:
        last = PurePosixPath(image.name).name
        found = by_full.get(image.name) or (by_last[last] if num_by_last[last] == 1 else None)
        if found is None or found.image_id in taken:
            unknown.append(escape(image.name))
            continue
        ids[image.name] = found.image_id
        taken.add(found.image_id)
        sized.append(replace(image, declared_hw=found.image_hw))
    if unknown:
        named = ", ".join(unknown[:_MAX_NAMED]) + (", ..." if len(unknown) > _MAX_NAMED else "")
        raise InputError(f"{where}: lacks {len(unknown)} of {len(images)} pictures ({named}); leave them out.")
    return CocoOutput(path, ids, label_map, min_score, has_own_ids=False), sized


def predict_files(
    detector: ExportedDetector, images: Sequence[ImageFile], outputs: Outputs, batch_size: int, *, has_progress: bool
) -> Counts:
    """Go over all pictures; one that cannot be read is told on stderr and counted.

    Raises:
        InputError: an output that cannot be written. What was written of pictures stays, of COCO results nothing.
    """
    counts = Counts()
    with contextlib.ExitStack() as stack:
        if outputs.coco is not None:
            stack.enter_context(outputs.coco)
        reporter = None
        if has_progress:
            reporter = stack.enter_context(show_progress("Pictures", len(images), unit="images"))
        for image, found in _predict_in_batches(detector, images, batch_size):
            if isinstance(found, InputError):
                counts.num_broken += 1
                click.echo(f"skipped: {found}", err=True)
            else:
                counts.num_images += 1
                _put_out(image, found, outputs, counts)
            if reporter is not None:
                _advance(reporter, counts)
    return counts


def _advance(reporter: Reporter, counts: Counts) -> None:
    numbers = {"broken": counts.num_broken} if counts.num_broken else {}
    reporter.advance(**numbers)


def _predict_in_batches(
    detector: ExportedDetector, images: Sequence[ImageFile], batch_size: int
) -> Iterator[tuple[ImageFile, Prediction | InputError]]:
    """What is found, in order; a batch is at most `batch_size` pictures, and one alone where they are large."""
    batch: list[tuple[ImageFile, bytes]] = []
    num_pixels = 0
    for image in images:
        try:
            image_bytes, more = image.read()
        except InputError as error:
            yield from _predict_batch(detector, batch)
            batch, num_pixels = [], 0
            yield image, error
            continue
        if batch and (len(batch) == batch_size or num_pixels + more > MAX_PIXELS):
            yield from _predict_batch(detector, batch)
            batch, num_pixels = [], 0
        batch.append((image, image_bytes))
        num_pixels += more
    yield from _predict_batch(detector, batch)


def _predict_batch(
    detector: ExportedDetector, batch: Sequence[tuple[ImageFile, bytes]]
) -> Iterator[tuple[ImageFile, Prediction | InputError]]:
    if batch:
        image_names = [escape(str(image.path)) for image, _ in batch]
        found = detector.predict_batch([image_bytes for _, image_bytes in batch], image_names)
        yield from zip((image for image, _ in batch), found, strict=True)


def _put_out(image: ImageFile, prediction: Prediction, outputs: Outputs, counts: Counts) -> None:
    if outputs.coco is not None:
        outputs.coco.add(image.name, prediction)
    shown = prediction.above(outputs.min_score)
    counts.num_by_class.update(shown.class_names)
    if outputs.print_line is not None:
        for line in shown.lines():
            outputs.print_line(f"{escape(image.name)}: {line}")
    if outputs.folder is not None:
        save_picture(shown, image.path, outputs.folder / image.name)


def save_picture(prediction: Prediction, source: Path, path: Path) -> None:
    """Draw the boxes; a file of that name is never half written. Its folder is made.

    Raises:
        InputError: it cannot be written, or is the source itself.
    """
    if os.path.realpath(path) == os.path.realpath(source):
        raise InputError(f"{path}: is the picture itself, which would be overwritten; give another --output.")
    kind = Image.registered_extensions().get(path.suffix.lower())
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        if kind is None:
            raise ValueError(f"unknown file extension: {path.suffix}")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            prediction.draw().save(partial, format=kind)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except (OSError, ValueError, KeyError) as error:  # no room, no such folder, a format that is not written
        raise InputError(f"{path}: the picture cannot be written ({error}).") from None
