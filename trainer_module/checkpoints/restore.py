"""Fine-tuning: which stored weights go into a network, which do not, and whether they are enough."""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import keras
import numpy as np

from detloom.schemas.config import FineTuneMode, Train
from detloom.schemas.errors import InputError
from detloom.trainer_module.checkpoints.restore_report import RestoreReport, RestoreRow, format_share
from detloom.trainer_module.checkpoints.stored_weights import (
    DESCRIPTIONS,
    StoredValue,
    StoredWeights,
    find_stored_weights,
    foreign_names,
)
from detloom.trainer_module.detector import Detector
from detloom.trainer_module.freezing import TrainedVariables, choose_trained
from detloom.trainer_module.variable_names import (
    PARTS,
    depends_on_classes,
    find_matches,
    is_in_last_class_layer,
    part_of,
    variables_by_path,
)

_PARTS_OF: dict[FineTuneMode, tuple[str, ...]] = {
    "classification": ("backbone",),
    "detection": ("backbone", "neck"),
    "full": PARTS,
    "all_but_classes": PARTS,
}
_MIN_ALIKE = 0.5  # share of the parameters below which a checkpoint is of another architecture
_INCLUDE, _EXCLUDE = "not in fine_tune_include", "in fine_tune_exclude"
_ABSENT, _TYPE = "absent in the checkpoint", "stored as"
_MAX_CLASSES = 5  # named in a note


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
        InputError: if there is no checkpoint that can be read, a pattern is found in no path, or patterns leave nothing
            to restore.
    """
    network = detector.network
    stored = find_stored_weights(train.fine_tune_checkpoint, detector.config, network)
    variables = variables_by_path(network)
    mode = _choose_mode(train.fine_tune_checkpoint_type, stored, variables)
    wanted = _wanted(mode, variables)
    reasons = {path: _not_in_mode(mode) for path in variables if path not in wanted}
    reasons |= _left_out(train, variables, wanted)
    wanted = [path for path in wanted if path not in reasons]
    if not wanted:
        raise _nothing_left(train, mode)
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
    judge = _Judge(train, detector, stored, mode, variables, wanted, unusable)
    report = RestoreReport(
        checkpoint=stored.where,
        kind=DESCRIPTIONS[stored.origin],
        asked=train.fine_tune_checkpoint_type,
        mode=mode,
        share=judge.share,
        restored=restored,
        fresh=fresh,
        unread=tuple(sorted(key for key in stored.shapes if key not in used)),
        refusal=_not_finite(stored, broken) if broken else judge.refusal(),
        trains=trained.parts,
        note=" ".join([*judge.notes(), *_notes_on_classes(train, detector, stored, arrays), *_notes(stored, detector)]),
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
    classes = [path for path in variables if is_in_last_class_layer(path)]
    agree = all(not _unusable(variables[path], stored.values.get(path)) for path in classes)
    return "full" if agree else "all_but_classes"


def _wanted(mode: FineTuneMode, variables: Collection[str]) -> list[str]:
    parts = _PARTS_OF[mode]
    return [
        path
        for path in variables
        if part_of(path) in parts and not (mode == "all_but_classes" and is_in_last_class_layer(path))
    ]


def _not_in_mode(mode: FineTuneMode) -> str:
    if mode == "all_but_classes":
        return f"the last class layer: not restored by '{mode}'"
    return f"not restored by '{mode}'"


def _left_out(train: Train, paths: Collection[str], wanted: list[str]) -> dict[str, str]:
    """By path of what is wanted, why `fine_tune_include` and `fine_tune_exclude` leave it as it is."""
    reasons: dict[str, str] = {}
    if train.fine_tune_include:
        included = find_matches(train.fine_tune_include, paths, "train.fine_tune_include")
        reasons |= {path: _INCLUDE for path in wanted if path not in included}
    excluded = find_matches(train.fine_tune_exclude, paths, "train.fine_tune_exclude")
    return reasons | {path: _EXCLUDE for path in wanted if path in excluded}


def _nothing_left(train: Train, mode: FineTuneMode) -> InputError:
    settings = {"fine_tune_include": train.fine_tune_include, "fine_tune_exclude": train.fine_tune_exclude}
    patterns = " and ".join(f"{name} {list(given)}" for name, given in settings.items() if given)
    return InputError(f"train: {patterns} leave nothing of what '{mode}' restores; allowed: patterns that leave some.")


def _unusable(variable: keras.Variable, value: StoredValue | None) -> str:
    if value is None:
        return _ABSENT
    if not value.dtype.startswith(("float", "bfloat")):
        return f"{_TYPE} {value.dtype}"
    if value.shape != tuple(variable.shape):
        return f"stored with the shape {list(value.shape)}, here {list(variable.shape)}"
    return ""


def _row(path: str, variable: keras.Variable, keys: tuple[str, ...] = (), reason: str = "") -> RestoreRow:
    return RestoreRow(path=path, shape=tuple(variable.shape), keys=keys, reason=reason)


def _size(variable: keras.Variable) -> int:
    return math.prod(variable.shape)


def _notes(stored: StoredWeights, detector: Detector) -> Iterator[str]:
    """What the weights expect, and the configuration does not give them."""
    if stored.origin == "automl" and not detector.config.image_resizer.half_pixel_centers:
        yield (
            f"{stored.where} was trained on pictures sampled at pixels' centres, this configuration samples at "
            "corners; set model.image_resizer.half_pixel_centers to true."
        )


def _notes_on_classes(
    train: Train, detector: Detector, stored: StoredWeights, restored: Collection[str]
) -> Iterator[str]:
    """A class layer of the right shape may be of other classes."""
    if not any(is_in_last_class_layer(path) for path in restored):
        return
    has_background = getattr(detector.config, "add_background_class", False)
    ours = (*(("background",) if has_background else ()), *detector.label_map.names)
    if stored.class_names and stored.class_names != ours:
        yield (
            f"The class layer is taken channel by channel: the classes of {stored.where} are "
            f"{_cut(stored.class_names)}, here {_cut(ours)}; set train.fine_tune_checkpoint_type to 'all_but_classes' "
            "to leave that layer as it is initialized."
        )
    elif not stored.class_names and train.fine_tune_checkpoint_type == "auto":
        yield (
            f"{stored.where} does not name its classes; as their number agrees, they are taken to be those of the "
            "label map, in the same order."
        )


def _cut(classes: tuple[str, ...]) -> str:
    more = f" and {len(classes) - _MAX_CLASSES} more" if len(classes) > _MAX_CLASSES else ""
    return ", ".join(classes[:_MAX_CLASSES]) + more


# --- whether it is enough ---------------------------------------------------------------------------------------------


def _not_finite(stored: StoredWeights, path: str) -> str:
    return (
        f"train.fine_tune_checkpoint: {stored.where} holds values that are not finite in "
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

    @property
    def share(self) -> float:
        """Parameters that can be restored, of those that are wanted."""
        return self._share_of(self.wanted)

    def refusal(self) -> str:
        """Empty if nothing is wrong."""
        return (
            self._wrong_parts()
            or self._other_types()
            or self._other_architecture()
            or self._whole_detector()
            or self._other_classes()
            or self._other_shapes()
            or self._too_little()
        )

    def notes(self) -> Iterator[str]:
        """What is not restored although it is wanted, where that is no reason to refuse."""
        if self.unusable and not self.refusal():
            path, reason = next(iter(self.unusable.items()))
            yield (
                f"{len(self.unusable)} of {len(self.wanted)} variables that '{self.mode}' restores stay as they are "
                f"initialized, first {path} ({reason})."
            )

    @property
    def _where(self) -> str:
        return self.stored.where

    def _share_of(self, paths: Collection[str]) -> float:
        total = sum(_size(self.variables[path]) for path in paths)
        return sum(_size(self.variables[path]) for path in paths if path not in self.unusable) / total

    def _share_by_part(self) -> dict[str, float]:
        """Of the parts that anything is wanted of."""
        paths = {part: [path for path in self.wanted if part_of(path) == part] for part in PARTS}
        return {part: self._share_of(found) for part, found in paths.items() if found}

    def _way_out(self) -> str:
        """How to restore the parts that fit."""
        least = self.train.fine_tune_min_restored_share
        shares = self._share_by_part()
        fit = [part for part, share in shares.items() if share > 0 and share >= least]
        if not fit or len(fit) == len(shares):
            return ""
        patterns = ", ".join(f"'^{part}/'" for part in fit)
        return f"; train.fine_tune_include: [{patterns}] restores what fits, the {' and the '.join(fit)}"

    def _wrong_parts(self) -> str:
        setting = f"train.fine_tune_checkpoint_type: got '{self.mode}', but {self._where} is"
        if self.mode == "classification" or not self.stored.values:
            return ""
        if self.stored.parts <= {"backbone"}:
            return f"{setting} {DESCRIPTIONS[self.stored.origin]}; set it to 'classification'."
        if self.mode in ("full", "all_but_classes") and "head" not in self.stored.parts:
            return f"{setting} a detector without its heads; set it to 'detection'."
        return ""

    def _whole_detector(self) -> str:
        if self.mode != "classification" or self.stored.origin != "odapi_detector":
            return ""
        setting = f"train.fine_tune_checkpoint_type: got 'classification', but {self._where} is a whole detector"
        if {part_of(path) for path in self.stored.values} == {"backbone"}:
            return (
                f"{setting}, of which the backbone alone fits; set it to 'detection', and train.fine_tune_include to "
                "['^backbone/']."
            )
        advice = "'full', 'all_but_classes' or 'detection'" if "head" in self.stored.parts else "'detection'"
        return f"{setting}; set it to {advice}."

    def _other_types(self) -> str:
        others = [path for path, reason in self.unusable.items() if reason.startswith(_TYPE)]
        if not others:
            return ""
        return (
            f"train.fine_tune_checkpoint: {self._where} has {len(others)} variables of another type, first "
            f"{others[0]}, {self.unusable[others[0]]}; allowed: floating-point numbers."
        )

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
            f"shape; the first that differs is {first} ({self.unusable.get(first, '')}){self._way_out()}."
        )

    def _is_class_size(self, path: str) -> bool:
        """Whether it is unusable for the number of classes alone."""
        if not depends_on_classes(path) or path not in self.stored.values:
            return False
        ours, theirs = tuple(self.variables[path].shape), self.stored.values[path].shape
        return len(ours) == len(theirs) and ours[:-1] == theirs[:-1] and ours != theirs

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
        if places == 0 or theirs % places:
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
        part, share = min(self._share_by_part().items(), key=lambda item: item[1])
        if share >= least:
            return ""
        return (
            f"train.fine_tune_checkpoint: {self._where} has {format_share(share)} of the parameters of the {part} that "
            f"'{self.mode}' restores, allowed: {least:.0%} (train.fine_tune_min_restored_share){self._way_out()}; "
            "`detloom restore-report` lists what it lacks."
        )
