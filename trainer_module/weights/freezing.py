"""Select the trained variables: `train.freeze_variables` and related settings.

The lists have the meaning of the Object Detection API under TensorFlow 1 (`model_lib.py`, `slim.filter_variables`); its
TF2 loop ignores them. Frozen layers are otherwise unchanged: batch norm still updates its moving statistics
(`model.freeze_batchnorm` stops that), and penalties on frozen weights remain part of the loss, as in the reference.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import keras

from detloom.schemas.errors import InputError
from detloom.schemas.model.config import Train
from detloom.trainer_module.weights.variable_names import PARTS, find_matches, part_of, variables_by_path


@dataclass(frozen=True)
class PartCounts:
    """Counts of a part's trainable variables and of those that are trained."""

    part: str
    num_variables: int
    num_trained: int
    num_parameters: int
    num_trained_parameters: int


@dataclass(frozen=True)
class TrainedVariables:
    """The variables that the optimizer updates.

    Attributes:
        by_path: in the network's order.
        parts: counts for the log and the report.
    """

    by_path: dict[str, keras.Variable]
    parts: tuple[PartCounts, ...]

    @property
    def variables(self) -> list[keras.Variable]:
        return list(self.by_path.values())

    def sentence(self) -> str:
        """Return the counts per part for the log."""
        texts = [
            f"{part.part} {part.num_trained} of {part.num_variables} variables "
            f"({part.num_trained_parameters} of {part.num_parameters} parameters)"
            for part in self.parts
        ]
        return f"Trained: {', '.join(texts)}."


def choose_trained(
    train: Train, network: keras.Model, foreign_names: Mapping[str, Collection[str]] | None = None
) -> TrainedVariables:
    """Select the trainable variables in `update_trainable_variables`, without the frozen ones.

    Args:
        foreign_names: by path, the variable's keys in other systems' checkpoints, for patterns that match none of ours.

    Raises:
        InputError: for a pattern that matches no name, and if no variable is left to train.
    """
    trainable = {path: variable for path, variable in variables_by_path(network).items() if variable.trainable}
    keras_names = {path: (variable.path,) for path, variable in trainable.items()}

    def find(setting: str, patterns: Sequence[str]) -> set[str]:
        return find_matches(
            patterns,
            trainable,
            f"train.{setting}",
            other_names=(keras_names, foreign_names or {}),
            kind="trainable variable",
        )

    chosen = set(trainable)
    if train.update_trainable_variables:
        chosen = find("update_trainable_variables", train.update_trainable_variables)
    chosen -= find("freeze_variables", train.freeze_variables)
    if not chosen:
        raise InputError(
            "train: update_trainable_variables and freeze_variables leave no variable to train; allowed: patterns that "
            "leave at least one."
        )
    kept = {path: variable for path, variable in trainable.items() if path in chosen}
    return TrainedVariables(kept, tuple(_count(part, trainable, kept) for part in PARTS))


def _count(part: str, trainable: Mapping[str, keras.Variable], kept: Mapping[str, keras.Variable]) -> PartCounts:
    sizes = {path: math.prod(variable.shape) for path, variable in trainable.items() if part_of(path) == part}
    trained = [size for path, size in sizes.items() if path in kept]
    return PartCounts(part, len(sizes), len(trained), sum(sizes.values()), sum(trained))
