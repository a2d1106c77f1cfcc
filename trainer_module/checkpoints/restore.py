"""Fine-tuning: which stored weights go into a network, which do not, and whether they are enough."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import keras
import numpy as np

from detloom.schemas.config import FineTuneMode, Train
from detloom.schemas.errors import InputError
from detloom.trainer_module.checkpoints.restore_report import RestoreReport, RestoreRow
from detloom.trainer_module.checkpoints.stored_weights import (
    DESCRIPTIONS,
    StoredValue,
    StoredWeights,
    find_stored_weights,
    foreign_names,
)
from detloom.trainer_module.detector import Detector
from detloom.trainer_module.freezing import TrainedVariables, choose_trained
from detloom.trainer_module.variable_names import PARTS, depends_on_classes, find_matches, part_of, variables_by_path

_PARTS_OF: dict[FineTuneMode, tuple[str, ...]] = {
    "classification": ("backbone",),
    "detection": ("backbone", "neck"),
    "full": PARTS,
    "all_but_classes": PARTS,
}
_MIN_ALIKE = 0.5  # share of the parameters below which a checkpoint is of another architecture
_INCLUDE, _EXCLUDE = "not in fine_tune_include", "in fine_tune_exclude"
_ABSENT = "absent in the checkpoint"


@dataclass(frozen=True)
class Restore:
    """What restoring would do; `arrays` by path are what goes into the network."""

    report: RestoreReport
    arrays: dict[str, np.ndarray]


def plan_restore(train: Train, detector: Detector, trained: TrainedVariables) -> Restore:
    """Compare what `train.fine_tune_checkpoint` holds with the network; nothing is changed.

    Returns:
        A plan whose report says in `refusal` why it must not be carried out; empty if it may.

    Raises:
        InputError: if there is no checkpoint that can be read, or a pattern is found in no path.
    """
    network = detector.network
    stored = find_stored_weights(train.fine_tune_checkpoint, detector.config, network)
    variables = variables_by_path(network)
    mode = _choose_mode(train.fine_tune_checkpoint_type, stored, variables)
    wanted = _wanted(mode, variables)
    reasons = {path: _not_in_mode(mode) for path in variables if path not in wanted}
    reasons |= _left_out(train, [path for path in variables if path in wanted])
    wanted = [path for path in wanted if path not in reasons]
    unusable = {path: reason for path in wanted if (reason := _unusable(variables[path], stored.values.get(path)))}
    arrays = {path: stored.values[path].read().astype(np.float32) for path in wanted if path not in unusable}
    broken = next((path for path, array in arrays.items() if not np.isfinite(array).all()), "")
    restored = tuple(_row(path, variables[path], keys=stored.values[path].keys) for path in arrays)
    fresh = tuple(
        _row(path, variables[path], reason=reason)
        for path in variables
        if (reason := reasons.get(path) or unusable.get(path, ""))
    )
    used = {key for row in restored for key in row.keys}
    num_wanted = sum(_size(variables[path]) for path in wanted)
    share = sum(row.num_parameters for row in restored) / num_wanted if num_wanted else 0.0
    judge = _Judge(train, detector, stored, mode, variables, wanted, unusable, share)
    report = RestoreReport(
        checkpoint=train.fine_tune_checkpoint,
        kind=DESCRIPTIONS[stored.origin],
        asked=train.fine_tune_checkpoint_type,
        mode=mode,
        share=share,
        restored=restored,
        fresh=fresh,
        unread=tuple(sorted(key for key in stored.shapes if key not in used)),
        refusal=_not_finite(train, stored, broken) if broken else judge.refusal(),
        trains=trained.parts,
    )
    return Restore(report, arrays)


def find_trained(train: Train, detector: Detector) -> TrainedVariables:
    """What is trained; patterns may call a variable as other systems' checkpoints do."""
    has_patterns = train.update_trainable_variables or train.freeze_variables or train.var_freeze_expr
    names = foreign_names(detector.config, detector.network) if has_patterns else {}
    return choose_trained(train, detector.network, names)


def restore(train: Train, detector: Detector, trained: TrainedVariables) -> RestoreReport:
    """Put the stored weights into the network.

    Raises:
        InputError: as `plan_restore`, and if the report refuses; the network is unchanged then.
    """
    plan = plan_restore(train, detector, trained)
    if plan.report.refusal:
        raise InputError(plan.report.refusal)
    variables = variables_by_path(detector.network)
    for path, array in plan.arrays.items():
        variables[path].assign(array)
    return plan.report


# --- what is wanted ---------------------------------------------------------------------------------------------------


def _choose_mode(asked: FineTuneMode, stored: StoredWeights, variables: Mapping[str, keras.Variable]) -> FineTuneMode:
    """What `auto` means for this checkpoint; any other mode is itself."""
    if asked != "auto":
        return asked
    if stored.parts <= {"backbone"}:
        return "classification"
    if "head" not in stored.parts:
        return "detection"
    classes = [path for path in variables if depends_on_classes(path)]
    agree = all(not _unusable(variables[path], stored.values.get(path)) for path in classes)
    return "full" if agree else "all_but_classes"


def _wanted(mode: FineTuneMode, variables: Collection[str]) -> list[str]:
    parts = _PARTS_OF[mode]
    return [
        path
        for path in variables
        if part_of(path) in parts and not (mode == "all_but_classes" and depends_on_classes(path))
    ]


def _not_in_mode(mode: FineTuneMode) -> str:
    if mode == "all_but_classes":
        return f"depends on the number of classes: not restored by '{mode}'"
    return f"not restored by '{mode}'"


def _left_out(train: Train, wanted: list[str]) -> dict[str, str]:
    """By path, why `fine_tune_include` and `fine_tune_exclude` leave it as it is."""
    names = {path: {path} for path in wanted}
    reasons: dict[str, str] = {}
    if train.fine_tune_include:
        included = find_matches(train.fine_tune_include, names, "train.fine_tune_include")
        reasons |= {path: _INCLUDE for path in wanted if path not in included}
    excluded = find_matches(train.fine_tune_exclude, names, "train.fine_tune_exclude")
    return reasons | {path: _EXCLUDE for path in wanted if path in excluded}


def _unusable(variable: keras.Variable, value: StoredValue | None) -> str:
    if value is None:
        return _ABSENT
    if not value.dtype.startswith(("float", "bfloat")):
        return f"stored as {value.dtype}"
    if value.shape != tuple(variable.shape):
        return f"stored with the shape {list(value.shape)}, here {list(variable.shape)}"
    return ""


def _row(path: str, variable: keras.Variable, keys: tuple[str, ...] = (), reason: str = "") -> RestoreRow:
    return RestoreRow(path=path, shape=tuple(variable.shape), keys=keys, reason=reason)


def _size(variable: keras.Variable) -> int:
    return math.prod(variable.shape)


# --- whether it is enough ---------------------------------------------------------------------------------------------


def _not_finite(train: Train, stored: StoredWeights, path: str) -> str:
    return (
        f"train.fine_tune_checkpoint: {train.fine_tune_checkpoint} holds values that are not finite in "
        f"{stored.values[path].keys[0]}; that training went wrong: choose an earlier checkpoint."
    )


@dataclass(frozen=True)
class _Judge:
    """Looks for the one sentence that says why a checkpoint must not be used."""

    train: Train
    detector: Detector
    stored: StoredWeights
    mode: FineTuneMode
    variables: Mapping[str, keras.Variable]
    wanted: list[str]
    unusable: Mapping[str, str]
    share: float

    @property
    def _where(self) -> str:
        return self.train.fine_tune_checkpoint

    def refusal(self) -> str:
        """Empty if nothing is wrong."""
        return (
            self._wrong_kind()
            or self._other_architecture()
            or self._other_classes()
            or self._other_shapes()
            or self._too_little()
        )

    def _wrong_kind(self) -> str:
        is_backbone = self.stored.parts <= {"backbone"}
        setting = f"train.fine_tune_checkpoint_type: got '{self.mode}', but {self._where} is"
        if self.mode == "classification" and self.stored.origin == "odapi_detector":
            advice = "'full', 'all_but_classes' or 'detection'" if "head" in self.stored.parts else "'detection'"
            return f"{setting} a whole detector; set it to {advice}."
        if self.mode != "classification" and is_backbone and self.stored.values:
            return f"{setting} {DESCRIPTIONS[self.stored.origin]}; set it to 'classification'."
        if self.mode in ("full", "all_but_classes") and "head" not in self.stored.parts and self.stored.values:
            return f"{setting} a detector without its heads; set it to 'detection'."
        return ""

    def _other_architecture(self) -> str:
        total = sum(_size(self.variables[path]) for path in self.wanted)
        others = [path for path in self.unusable if not self._is_class_size(path)]
        alike = total - sum(_size(self.variables[path]) for path in others)
        if alike >= _MIN_ALIKE * total and self.share > 0:
            return ""
        first = others[0] if others else next(iter(self.unusable), "")
        return (
            f"train.fine_tune_checkpoint: {self._where} is of another architecture than the configuration's: of "
            f"{len(self.wanted)} variables to restore it has {len(self.wanted) - len(self.unusable)} with the right "
            f"shape; the first that differs is {first} ({self.unusable.get(first, '')})."
        )

    def _is_class_size(self, path: str) -> bool:
        return depends_on_classes(path) and path in self.stored.values

    def _other_classes(self) -> str:
        """Only the last class layer differs, and nothing was said about that."""
        if self.mode != "full" or not self.unusable or self.train.fine_tune_skip_mismatch:
            return ""
        if not all(self._is_class_size(path) for path in self.unusable):
            return ""
        path = next(iter(self.unusable))
        ours = self.variables[path].shape[-1]
        theirs = self.stored.values[path].shape[-1]
        background = int(bool(getattr(self.detector.config, "add_background_class", False)))
        channels = self.detector.label_map.num_classes + background
        places = ours // channels
        if theirs % places:
            return ""
        stored = theirs // places
        with_background = ", the background among them" if background else ""
        is_background = abs(stored - channels) == 1
        hint = "; one more or less may be the background (model.add_background_class)" if is_background else ""
        return (
            f"train.fine_tune_checkpoint_type: 'full' restores everything, but {self._where} has {stored} classes and "
            f"this detector {channels}{with_background}{hint}; set it to 'all_but_classes', which leaves only the "
            "last class layer as it is initialized."
        )

    def _other_shapes(self) -> str:
        if self.train.fine_tune_skip_mismatch:
            return ""
        differing = [path for path, reason in self.unusable.items() if reason != _ABSENT]
        if not differing:
            return ""
        return (
            f"train.fine_tune_checkpoint: {self._where} has {len(differing)} variables that do not fit, first "
            f"{differing[0]}, {self.unusable[differing[0]]}; set train.fine_tune_skip_mismatch to true to leave them "
            "as they are initialized."
        )

    def _too_little(self) -> str:
        absent = [path for path, reason in self.unusable.items() if reason == _ABSENT]
        if self.mode == "full" and absent and not self.train.fine_tune_skip_mismatch:
            return (
                f"train.fine_tune_checkpoint_type: 'full' restores everything, but {self._where} lacks "
                f"{len(absent)} variables, first {absent[0]}; set train.fine_tune_skip_mismatch to true to leave them "
                "as they are initialized."
            )
        least = self.train.fine_tune_min_restored_share
        if self.share >= least:
            return ""
        return (
            f"train.fine_tune_checkpoint: {self._where} has {self.share:.1%} of the parameters that "
            f"'{self.mode}' restores, allowed: {least:.0%} (train.fine_tune_min_restored_share); `detloom "
            "restore-report` lists what it lacks."
        )
