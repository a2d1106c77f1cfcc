"""Write detections as YOLO labels or as a CSV table."""

import contextlib
import csv
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from detloom.pipelines.predict.image_files import ImageFile
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import escape
from detloom.schemas.reading.replace_when_done import replace_when_done
from detloom.schemas.reading.text_file import write_text_file
from detloom.trainer_module.inference.prediction import Prediction


class YoloOutput:
    """A text file for each image, `class cx cy width height` relative to the image, and classes.txt with the names."""

    def __init__(self, folder: Path, images: Sequence[ImageFile], label_map: LabelMap, min_score: float) -> None:
        """Raise InputError for two images that would have the same label file, and for files that exist."""
        self._folder, self._names, self._min_score = folder, label_map.names, min_score
        self._index_by_id = {class_id: index for index, class_id in enumerate(label_map.class_ids)}
        by_label: dict[PurePosixPath, str] = {PurePosixPath("classes.txt"): "the list of classes"}
        for image in images:
            other = by_label.setdefault(PurePosixPath(image.name).with_suffix(".txt"), image.name)
            if other != image.name:
                both = f"{escape(image.name)} and {escape(other)}"
                raise InputError(f"--yolo: {both} would have the same label file; rename one image.")
        existing = next((label for label in by_label if (folder / label).exists()), None)
        if existing is not None:
            raise InputError(f"--yolo: {escape(str(folder / existing))} exists already; name another folder.")

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Write the names of the classes."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_text_file(self._folder / "classes.txt", "".join(f"{name}\n" for name in self._names))
        yield

    def add(self, name: str, prediction: Prediction) -> None:
        kept = prediction.above(self._min_score)
        lines = []
        for class_id, box in zip(kept.class_ids.tolist(), kept.boxes_yxyx_rel.tolist(), strict=True):
            ymin, xmin, ymax, xmax = box
            if class_id not in self._index_by_id:
                raise InputError(f"--yolo: {escape(name)}: the model's label map has no class {class_id}.")
            values = ((xmin + xmax) / 2, (ymin + ymax) / 2, xmax - xmin, ymax - ymin)
            lines.append(" ".join([str(self._index_by_id[class_id]), *(f"{value:.6f}" for value in values)]))
        path = (self._folder / name).with_suffix(".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


class CsvOutput:
    """A table with a row for each object, boxes in pixels; it gets its final name only when it is complete."""

    def __init__(self, path: Path, min_score: float) -> None:
        self._path, self._min_score = path, min_score

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Open the file for `add`."""
        with contextlib.ExitStack() as stack:
            partial = stack.enter_context(replace_when_done(self._path))
            # Names of files may not be UTF-8.
            file = stack.enter_context(partial.open("x", encoding="utf-8", errors="surrogateescape", newline=""))
            self._rows = csv.writer(file)
            self._rows.writerow(("image", "class_id", "class", "score", "xmin", "ymin", "xmax", "ymax"))
            yield

    def add(self, name: str, prediction: Prediction) -> None:
        kept = prediction.above(self._min_score)
        boxes = kept.boxes_yxyx_px.tolist()
        for class_id, class_name, score, box in zip(
            kept.class_ids.tolist(), kept.class_names, kept.scores.tolist(), boxes, strict=True
        ):
            ymin, xmin, ymax, xmax = (f"{side:.1f}" for side in box)
            self._rows.writerow((name, class_id, class_name, f"{score:.4f}", xmin, ymin, xmax, ymax))
