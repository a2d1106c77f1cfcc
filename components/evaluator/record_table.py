"""The images of an evaluation in a few arrays: some 70 bytes for each detection, with its matches."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from detloom.components.evaluator.image_record import ImageRecord
from detloom.components.evaluator.slices import Feature
from detloom.schemas.contracts.label_map import LabelMap
from detloom.trainer_module.evaluation.coco_images import ImageDetections, ImageGroundTruth
from detloom.trainer_module.evaluation.image_table import ImageTable, TableBuilder
from detloom.trainer_module.evaluation.matches import BY_CLASS, CLASS_AGNOSTIC, FOUND, Columns, match_boxes


@dataclass(frozen=True, eq=False)
class RecordTable:
    """Records without problems, sorted by source id; the image with the position i has the id i + 1.

    Attributes:
        truth: ground truth of all images.
        found: detections of each model, by its name.
        features: values of the features that slices use, by image.
        failures: the first image without detections of a model, by its name, as the end of a sentence.
    """

    source_ids: Sequence[str]
    truth: ImageTable[ImageGroundTruth]
    found: Mapping[str, ImageTable[ImageDetections]]
    features: Sequence[Mapping[str, Feature]]
    failures: Mapping[str, str]

    def __len__(self) -> int:
        return len(self.source_ids)

    @classmethod
    def of(cls, records: Iterable[ImageRecord]) -> "RecordTable":
        """Return the records as a table."""
        truth = TableBuilder(ImageGroundTruth)
        found: dict[str, TableBuilder[ImageDetections]] = {}
        source_ids, features, failures = [], [], list[tuple[str, str, str]]()
        for record in records:
            assert record.problem is None
            of_objects = {
                f"{name}/{column}": values
                for name, columns in record.matches.items()
                for column, values in columns.items()
                if column.endswith(FOUND)
            }
            truth.add(record.ground_truth(0), of_objects)
            for name in record.found:
                matches = record.matches.get(name, {})
                of_detections = {column: values for column, values in matches.items() if not column.endswith(FOUND)}
                builder = found.setdefault(name, TableBuilder(ImageDetections))
                builder.add(record.detections(0, name), of_detections)
            failures += [(record.source_id, *failure) for failure in record.failures.items()]
            source_ids.append(record.source_id)
            features.append(record.features or _NO_FEATURES)
        order = np.array(sorted(range(len(source_ids)), key=source_ids.__getitem__), np.int64)
        image_ids = np.arange(1, len(order) + 1)
        tables = {name: found.pop(name).build() for name in list(found)}
        return cls(
            [source_ids[i] for i in order],
            truth.build().take(order).with_ids(image_ids),
            {name: tables.pop(name).take(order).with_ids(image_ids) for name in list(tables)},
            [features[i] for i in order],
            {name: f"in record '{source_id}' it failed ({why})" for source_id, name, why in sorted(failures)[::-1]},
        )

    def take_matches(self, name: str) -> dict[str, Columns]:
        """Return the columns of `match_boxes` of a model by BY_CLASS and CLASS_AGNOSTIC, and remove them here.

        Empty if they were not computed where the model ran.
        """
        result: dict[str, Columns] = {}
        for prefix in (BY_CLASS, CLASS_AGNOSTIC):
            sources = [(self.found[name].columns, prefix), (self.truth.columns, f"{name}/{prefix}")]
            columns = {
                key.removeprefix(start): source.pop(key)
                for source, start in sources
                for key in list(source)
                if key.startswith(start)
            }
            if columns:
                result[prefix] = columns
        return result


_NO_FEATURES: Mapping[str, Feature] = {}


def match_records(
    records: Sequence[ImageRecord], label_map: LabelMap, sizes: Sequence[tuple[float, float]]
) -> list[dict[str, Columns]]:
    """Match the detections of each model in each record; see `ImageRecord.matches`."""
    result: list[dict[str, Columns]] = [{} for _ in records]
    truth = ImageTable.of(ImageGroundTruth, [record.ground_truth(0) for record in records])
    for name in records[0].found if records else ():
        found = ImageTable.of(ImageDetections, [record.detections(0, name) for record in records])
        for prefix, class_ids in ((BY_CLASS, label_map.class_ids), (CLASS_AGNOSTIC, None)):
            for column, values in match_boxes(truth, found, class_ids, sizes if class_ids else ()).items():
                rows = truth.offsets_I1 if column == FOUND else found.offsets_I1
                for number, matches in enumerate(result):
                    of_model = matches.setdefault(name, {})
                    of_model[f"{prefix}{column}"] = values[rows[number] : rows[number + 1]]
    return result
