"""Needs of the evaluator and the gates in the data: classes, and features of the examples.

DatasetValidator checks it before training, and the evaluator checks it again: its model and data can come from
elsewhere.
"""

import itertools
import math
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.reading.typed_dict import nearest_hint
from detloom.schemas.run_file.evaluator import EvaluatorSettings, ImageSlices
from detloom.schemas.run_file.gates import Gates

if typing.TYPE_CHECKING:
    import tensorflow as tf

    from detloom.trainer_module.data.records import ExampleFeatures

Feature = tuple[str | int | float, ...]  # the values of one feature of one example
_NUM_LOOKED_AT = 100  # examples that are searched for features


@dataclass(frozen=True, kw_only=True)
class EvaluationRequirements:
    """Classes and features that an evaluation finds in the data, or fails.

    Attributes:
        class_metrics: metrics of gates for one class, such as `AP50/cat`.
        image_slices: slices by a feature of the examples.
        split: the split on which the model is evaluated, or a file; messages name it.
    """

    class_metrics: tuple[str, ...] = ()
    image_slices: tuple[ImageSlices, ...] = ()
    split: str = "test"

    @classmethod
    def of_settings(cls, settings: EvaluatorSettings, gates: Gates, split: str) -> "EvaluationRequirements":
        metrics = [each.metric for each in gates.floors] + [each.metric for each in gates.changes]
        return cls(
            class_metrics=tuple(sorted({metric for metric in metrics if "/" in metric})),
            image_slices=tuple(each for each in settings.image_slices if each.feature),
            split=split,
        )

    @property
    def feature_keys(self) -> tuple[str, ...]:
        return tuple(each.feature for each in self.image_slices)

    def check_classes(self, label_map: LabelMap) -> None:
        """Raise InputError if a gate names a class that the label map does not have."""
        for metric in self.class_metrics:
            class_name = metric.partition("/")[2]
            if class_name not in label_map.names:
                hint = nearest_hint(class_name, label_map.names)
                raise InputError(
                    f"gates: got the metric '{metric}', allowed: one of the {label_map.num_classes} classes of the "
                    f"label map.{hint}"
                )

    def check_examples(self, shards: Iterable[str]) -> None:
        """Check the first examples in the TFRecord files of the split as `check_features` does; skip damaged ones."""
        if self.image_slices:
            first = itertools.islice(_read_examples(shards), _NUM_LOOKED_AT)
            self.check_features([feature_values(example, self.feature_keys) for example in first])

    def check_features(self, features: Sequence[Mapping[str, Feature]]) -> None:
        """Check the features of some examples.

        Raises:
            InputError: no example has a feature, or a feature with edges is a text.
        """
        for each in self.image_slices:
            found = [values for of_example in features if (values := of_example.get(each.feature))]
            if features and not found:
                raise InputError(
                    f"evaluator.image_slices: got the feature '{each.feature}', which none of the first "
                    f"{len(features)} examples of '{self.split}' has."
                )
            texts = [value for values in found for value in values if isinstance(value, str)]
            if each.edges and texts:
                raise InputError(
                    f"evaluator.image_slices: got {texts[0]!r} as '{each.feature}' in '{self.split}', allowed: "
                    "numbers, because edges are set."
                )


def feature_values(example: "ExampleFeatures", feature_keys: Iterable[str]) -> dict[str, Feature]:
    """Return the values of the features that an example has, as text or finite numbers."""
    return {key: _values_of(example.raw(key)) for key in feature_keys if key in example}


def _values_of(feature: "tf.train.Feature") -> Feature:
    if feature.HasField("bytes_list"):
        return tuple(value.decode("utf-8", "replace") for value in feature.bytes_list.value)
    return tuple(value for value in (*feature.int64_list.value, *feature.float_list.value) if math.isfinite(value))


def _read_examples(shards: Iterable[str]) -> Iterator["ExampleFeatures"]:
    import tensorflow as tf  # late: COCO files are evaluated without it

    from detloom.components.record_files import read_records
    from detloom.trainer_module.data.records import ExampleFeatures

    for path in shards:
        try:
            for _, serialized in read_records(path):
                yield ExampleFeatures(serialized)
        except (tf.errors.OpError, ValueError):
            continue  # the checks of records report it
