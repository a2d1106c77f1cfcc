"""Which variables are trained: `train.freeze_variables` and its relatives.

The lists mean what they mean in the Object Detection API under TensorFlow 1 (`model_lib.py`, `slim.filter_variables`);
its TF2 loop does not read them. Nothing else of a frozen layer changes: batch norm goes on updating its moving
statistics (`model.freeze_batchnorm` stops that), and penalties on frozen weights stay part of the loss, as there.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import keras

from detloom.schemas.config import Train
from detloom.schemas.errors import InputError
from detloom.trainer_module.variable_names import PARTS, find_matches, part_of, variables_by_path


@dataclass(frozen=True)
class PartCounts:
    """Trainable variables of a part, and how many of them are trained."""

    part: str
    num_variables: int
    num_trained: int
    num_parameters: int
    num_trained_parameters: int


@dataclass(frozen=True)
class TrainedVariables:
    """What the optimizer changes.

    Attributes:
        by_path: in the network's order.
        parts: for the log and the report.
    """

    by_path: dict[str, keras.Variable]
    parts: tuple[PartCounts, ...]

    @property
    def variables(self) -> list[keras.Variable]:
        return list(self.by_path.values())

    def sentence(self) -> str:
        """For the log: by part, what trains."""
        texts = [
            f"{each.part} {each.num_trained} of {each.num_variables} variables "
            f"({each.num_trained_parameters} of {each.num_parameters} parameters)"
            for each in self.parts
        ]
        return f"Trained: {', '.join(texts)}."


def choose_trained(
    train: Train, network: keras.Model, foreign_names: Mapping[str, Collection[str]] | None = None
) -> TrainedVariables:
    """Of all trainable variables, those that `update_trainable_variables` names, without those that are frozen.

    Args:
        foreign_names: by path, what a pattern that is found in none of our own names may call the variable: its keys in
            other systems' checkpoints.

    Raises:
        InputError: for a pattern that is found in no name, and if nothing is left to train.
    """
    trainable = {path: variable for path, variable in variables_by_path(network).items() if variable.trainable}
    keras_names = {path: (variable.path,) for path, variable in trainable.items()}

    def find(setting: str, patterns: Sequence[str], *, only_from_start: bool = False) -> set[str]:
        return find_matches(
            patterns,
            trainable,
            f"train.{setting}",
            other_names=(keras_names, foreign_names or {}),
            kind="trainable variable",
            only_from_start=only_from_start,
        )

    chosen = set(trainable)
    if train.update_trainable_variables:
        chosen = find("update_trainable_variables", train.update_trainable_variables)
    chosen -= find("freeze_variables", train.freeze_variables)
    if train.var_freeze_expr:
        chosen -= find("var_freeze_expr", [train.var_freeze_expr], only_from_start=True)
    if not chosen:
        raise InputError(
            "train: update_trainable_variables, freeze_variables and var_freeze_expr leave no variable to train; "
            "allowed: patterns that leave some."
        )
    kept = {path: variable for path, variable in trainable.items() if path in chosen}
    return TrainedVariables(kept, tuple(_count(part, trainable, kept) for part in PARTS))


def _count(part: str, trainable: Mapping[str, keras.Variable], kept: Mapping[str, keras.Variable]) -> PartCounts:
    sizes = {path: math.prod(variable.shape) for path, variable in trainable.items() if part_of(path) == part}
    trained = [size for path, size in sizes.items() if path in kept]
    return PartCounts(part, len(sizes), len(trained), sum(sizes.values()), sum(trained))
