"""One image of an evaluation without its bytes, and its form in the files between workers and the evaluator.

The files can lie in storage that others may write to, so they hold data only, which cannot run code when they are read:
a line of JSON, and the bytes of the arrays that it lists.
"""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from detloom.components.evaluation_requirements import Feature
from detloom.components.example_gen.coco_masks import encode_mask
from detloom.schemas.contracts.arrays import Array
from detloom.schemas.errors import InputError
from detloom.trainer_module.boxes.masks import as_counts
from detloom.trainer_module.evaluation.coco_images import ImageDetections, ImageGroundTruth
from detloom.trainer_module.inference.prediction import detections_of
from detloom.trainer_module.inference.runtime import Rows

_KINDS = "bifu"  # of arrays: booleans and numbers
_BYTES = "bytes"  # an object array [N] of bytes: run lengths of masks


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageRecord:
    """One image without its bytes.

    Attributes:
        truth: columns of ground truth, by their names in `ImageGroundTruth`; optional columns may be missing.
        verified_class_ids: see `ImageGroundTruth`.
        features: the example's values of the features that slices use.
        found: detections of each model, by the name of the model.
        matches: columns of `match_boxes` of each model, with prefixes of record_table.py; empty if not computed.
        problem: why the record cannot be used, as the end of a sentence, or None.
        failures: why a model that is not judged returned no detections, by the name of the model.
    """

    source_id: str
    image_hw: tuple[int, int] = (0, 0)
    truth: Mapping[str, Array] = field(default_factory=dict)
    verified_class_ids: tuple[int, ...] = ()
    features: Mapping[str, Feature] = field(default_factory=dict)
    found: Mapping[str, Rows] = field(default_factory=dict)
    matches: Mapping[str, Mapping[str, Array]] = field(default_factory=dict)
    problem: str | None = None
    failures: Mapping[str, str] = field(default_factory=dict)

    def ground_truth(self, image_id: int) -> ImageGroundTruth:
        return ImageGroundTruth(
            image_id=image_id, image_hw=self.image_hw, verified_class_ids=self.verified_class_ids, **self.truth
        )

    def detections(self, image_id: int, model_name: str) -> ImageDetections:
        return detections_of(self.found[model_name], image_id)


def encode_record(record: ImageRecord) -> bytes:
    """Return the record as bytes for `decode_record`."""
    groups = {"truth": record.truth, **{f"found/{name}": rows for name, rows in record.found.items()}}
    groups |= {f"matches/{name}": columns for name, columns in record.matches.items()}
    arrays = [(group, name, array) for group, rows in groups.items() for name, array in rows.items()]
    head = {
        "source_id": record.source_id,
        "image_hw": record.image_hw,
        "verified_class_ids": record.verified_class_ids,
        "features": dict(record.features),
        "models": list(record.found),
        "matched": list(record.matches),
        "problem": record.problem,
        "failures": dict(record.failures),
        "arrays": [(group, name, *_kind_and_shape(array)) for group, name, array in arrays],
    }
    content = b"".join(b"".join(array) if array.dtype == object else array.tobytes() for _, _, array in arrays)
    return b"\n".join([json.dumps(head).encode(), content])


def _kind_and_shape(array: Array) -> tuple[str, Sequence[int]]:
    """Return the type of an array and its shape; of bytes, their lengths."""
    return (_BYTES, [len(each) for each in array]) if array.dtype == object else (array.dtype.str, array.shape)


def decode_record(data: bytes) -> ImageRecord:
    """Return the record of these bytes.

    Raises:
        InputError: `encode_record` did not write them.
    """
    line, _, content = data.partition(b"\n")
    try:
        head = json.loads(line)
        groups: dict[str, dict[str, Array]] = {"truth": {}}
        groups |= {f"found/{name}": {} for name in head["models"]}
        groups |= {f"matches/{name}": {} for name in head["matched"]}
        offset = 0
        for group, name, kind, shape in head["arrays"]:
            if kind == _BYTES:
                ends = list(itertools.accumulate(shape, initial=offset))
                if min(shape, default=0) < 0 or ends[-1] > len(content):
                    raise ValueError("a mask outside of the file")
                counts = [content[start:end] for start, end in itertools.pairwise(ends)]
                for each in counts:  # raises ValueError; pycocotools' C code does not check them
                    image_hw = tuple(head["image_hw"])
                    encode_mask({"size": list(image_hw), "counts": each.decode("ascii")}, image_hw)
                groups[group][name], offset = as_counts(counts), ends[-1]
                continue
            dtype, count = np.dtype(kind), math.prod(shape)
            if dtype.kind not in _KINDS:
                raise ValueError(f"an array of {dtype}")
            array = np.frombuffer(content, dtype, count, offset) if count else np.zeros(0, dtype)
            groups[group][name] = array.reshape(shape).copy()
            offset += count * dtype.itemsize
        return ImageRecord(
            source_id=head["source_id"],
            image_hw=tuple(head["image_hw"]),
            truth=groups["truth"],
            verified_class_ids=tuple(head["verified_class_ids"]),
            features={name: tuple(values) for name, values in head["features"].items()},
            found={name: groups[f"found/{name}"] for name in head["models"]},
            matches={name: groups[f"matches/{name}"] for name in head["matched"]},
            problem=head["problem"],
            failures=dict(head["failures"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(f"intermediate file of the evaluation: cannot be read ({error}); run again.") from None
