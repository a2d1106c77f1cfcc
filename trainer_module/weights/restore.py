"""Fine-tuning: select the stored weights that go into a network, and decide whether they suffice."""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import keras
import numpy as np

from detloom.schemas.errors import InputError, list_first
from detloom.schemas.model.config import FineTuneMode, Train
from detloom.trainer_module.detectors.detector import Detector
from detloom.trainer_module.weights.freezing import TrainedVariables, choose_trained
from detloom.trainer_module.weights.restore_report import RestoreReport, RestoreRow, format_share
from detloom.trainer_module.weights.stored_weights import (
    DESCRIPTIONS,
    StoredValue,
    StoredWeights,
    find_stored_weights,
    foreign_names,
)
from detloom.trainer_module.weights.variable_names import (
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
_MIN_ALIKE = 0.5  # a lower share of matching parameters means another architecture
_INCLUDE, _EXCLUDE = "not in fine_tune_include", "in fine_tune_exclude"


@dataclass(frozen=True)
class Restore:
    """A restore that has not been executed; `arrays` by path are the new values of variables."""

    report: RestoreReport
    arrays: dict[str, np.ndarray]


def plan_restore(train: Train, detector: Detector, trained: TrainedVariables) -> Restore:
    """Compare the content of `train.fine_tune_checkpoint` with the network; nothing is changed.

    Returns:
        A plan. `refusal` in its report is the reason why it must not be executed, or empty.

    Raises:
        InputError: if no checkpoint can be read, a pattern matches no path, or patterns leave nothing to restore.
    """
    network = detector.network
    stored = find_stored_weights(train.fine_tune_checkpoint, detector.family, network)
    variables = variables_by_path(network)
    mode = _choose_mode(train.fine_tune_checkpoint_type, stored, variables)
    wanted = _wanted(mode, variables)
    reasons = {path: _not_in_mode(mode) for path in variables if path not in wanted}
    reasons |= _left_out(train, variables, wanted)
    wanted = [path for path in wanted if path not in reasons]
    if not wanted:
        raise _nothing_left(train, mode)
    mismatches = {path: _find_mismatch(variables[path], stored.values.get(path)) for path in wanted}
    unusable = {path: reason for path, reason in mismatches.items() if reason}
    arrays = {path: stored.values[path].read().astype(np.float32) for path in wanted if path not in unusable}
    broken = next((path for path, array in arrays.items() if not np.isfinite(array).all()), "")
    shapes = {path: tuple(variable.shape) for path, variable in variables.items()}
    restored = tuple(RestoreRow(path, shapes[path], keys=stored.values[path].keys) for path in arrays)
    fresh = tuple(
        RestoreRow(path, shapes[path], reason=reason, is_mismatch=path in unusable)
        for path in variables
        if (reason := reasons.get(path) or unusable.get(path))
    )
    used = {key for row in restored for key in row.keys}
    check = _RestoreCheck(train, detector, stored, mode, variables, wanted, unusable)
    report = RestoreReport(
        checkpoint=stored.where,
        kind=DESCRIPTIONS[stored.origin],
        asked=train.fine_tune_checkpoint_type,
        mode=mode,
        share=check.share,
        restored=restored,
        fresh=fresh,
        unread=tuple(sorted(key for key in stored.shapes if key not in used)),
        refusal=_not_finite(stored, broken) if broken else check.refusal(),
        trains=trained.parts,
        note=" ".join([*check.notes(), *_notes_on_classes(train, detector, stored, arrays), *_notes(stored, detector)]),
    )
    return Restore(report, arrays)


def find_trained(train: Train, detector: Detector) -> TrainedVariables:
    """Select the trained variables; patterns may use the names of other systems' checkpoints."""
    has_patterns = train.update_trainable_variables or train.freeze_variables
    names = foreign_names(detector.family, detector.network) if has_patterns else {}
    return choose_trained(train, detector.network, names)


def restore(train: Train, detector: Detector, trained: TrainedVariables) -> RestoreReport:
    """Restore the stored weights into the network.

    Raises:
        InputError: as `plan_restore`, and if its report refuses; the network is then unchanged.
    """
    plan = plan_restore(train, detector, trained)
    if plan.report.refusal:
        raise InputError(plan.report.refusal)
    variables = variables_by_path(detector.network)
    for path, array in plan.arrays.items():
        variables[path].assign(array)
    return plan.report


# --- selection --------------------------------------------------------------------------------------------------------


def _choose_mode(asked: FineTuneMode, stored: StoredWeights, variables: Mapping[str, keras.Variable]) -> FineTuneMode:
    """Return the mode that `auto` selects for this checkpoint; any other mode is returned unchanged."""
    if asked != "auto":
        return asked
    if stored.parts <= {"backbone"}:
        return "classification"
    if "head" not in stored.parts:
        return "detection"
    classes = [path for path in variables if is_in_last_class_layer(path)]
    agree = all(not _find_mismatch(variables[path], stored.values.get(path)) for path in classes)
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
    """Return the reason per path for wanted variables that `fine_tune_include` and `fine_tune_exclude` exclude."""
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


def _find_mismatch(variable: keras.Variable, value: StoredValue | None) -> str:
    """Return why a stored value cannot be restored; empty if it can."""
    if value is None:
        return "absent in the checkpoint"
    if not value.dtype.startswith(("float", "bfloat")):
        return f"stored as {value.dtype}"
    if value.shape != tuple(variable.shape):
        return f"stored with the shape {list(value.shape)}, here {list(variable.shape)}"
    return ""


def _size(variable: keras.Variable) -> int:
    return math.prod(variable.shape)


def _notes(stored: StoredWeights, detector: Detector) -> Iterator[str]:
    """Warn about settings of the configuration that do not match the weights."""
    if stored.origin == "automl" and not detector.config.image_resizer.half_pixel_centers:
        yield (
            f"{stored.where} was trained on images sampled at pixel centers, but this configuration samples at "
            "corners; set model.image_resizer.half_pixel_centers to true."
        )


def _notes_on_classes(
    train: Train, detector: Detector, stored: StoredWeights, restored: Collection[str]
) -> Iterator[str]:
    """Warn if a class layer of the right shape may belong to other classes."""
    if not any(is_in_last_class_layer(path) for path in restored):
        return
    has_background = getattr(detector.config, "add_background_class", False)
    ours = (*(("background",) if has_background else ()), *detector.label_map.names)
    if stored.class_names and stored.class_names != ours:
        yield (
            f"The class layer is restored channel by channel: the classes of {stored.where} are "
            f"{list_first(stored.class_names, 5)}, here {list_first(ours, 5)}; set train.fine_tune_checkpoint_type to "
            "'all_but_classes' to leave that layer initialized."
        )
    elif not stored.class_names and train.fine_tune_checkpoint_type == "auto":
        yield (
            f"{stored.where} does not name its classes; because their number agrees, they are assumed to be those of "
            "the label map, in the same order."
        )


# --- sufficiency ------------------------------------------------------------------------------------------------------


def _not_finite(stored: StoredWeights, path: str) -> str:
    return (
        f"train.fine_tune_checkpoint: {stored.where} holds values that are not finite in "
        f"{stored.values[path].keys[0]}; that training diverged: choose an earlier checkpoint."
    )


@dataclass(frozen=True)
class _RestoreCheck:
    """Finds the reason why a checkpoint must not be used, if any."""

    train: Train
    detector: Detector
    stored: StoredWeights
    mode: FineTuneMode
    variables: Mapping[str, keras.Variable]
    wanted: list[str]
    unusable: Mapping[str, str]  # the reason by path

    @property
    def share(self) -> float:
        """Share of the wanted parameters that can be restored."""
        return self._share_of(self.wanted)

    def refusal(self) -> str:
        """Return the reason in one sentence, or an empty string."""
        return (
            self._wrong_parts()
            or self._other_architecture()
            or self._whole_detector()
            or self._other_classes()
            or self._other_shapes()
            or self._too_little()
        )

    def notes(self) -> Iterator[str]:
        """Name wanted variables that are not restored, where that is no reason to refuse."""
        if self.unusable and not self.refusal():
            path, reason = next(iter(self.unusable.items()))
            yield (
                f"{len(self.unusable)} of {len(self.wanted)} variables that '{self.mode}' restores keep their initial "
                f"values, first {path} ({reason})."
            )

    def _share_of(self, paths: Collection[str]) -> float:
        total = sum(_size(self.variables[path]) for path in paths)
        return sum(_size(self.variables[path]) for path in paths if path not in self.unusable) / total

    def _share_by_part(self) -> dict[str, float]:
        """Return the share per part, for parts with wanted variables."""
        paths = {part: [path for path in self.wanted if part_of(path) == part] for part in PARTS}
        return {part: self._share_of(its_paths) for part, its_paths in paths.items() if its_paths}

    def _suggest_include(self) -> str:
        """Return a suggestion that restores only the parts that fit, or an empty string."""
        least = self.train.fine_tune_min_restored_share
        shares = self._share_by_part()
        fit = [part for part, share in shares.items() if share > 0 and share >= least]
        if not fit or len(fit) == len(shares):
            return ""
        patterns = ", ".join(f"'^{part}/'" for part in fit)
        return f"; train.fine_tune_include: [{patterns}] restores what fits, the {' and the '.join(fit)}"

    def _wrong_parts(self) -> str:
        setting = f"train.fine_tune_checkpoint_type: got '{self.mode}', but {self.stored.where} is"
        if self.mode == "classification" or not self.stored.values:
            return ""
        if self.stored.parts <= {"backbone"}:
            return f"{setting} {DESCRIPTIONS[self.stored.origin]}; set it to 'classification'."
        if self.mode in ("full", "all_but_classes") and "head" not in self.stored.parts:
            return f"{setting} a detector without heads; set it to 'detection'."
        return ""

    def _whole_detector(self) -> str:
        if self.mode != "classification" or self.stored.origin != "odapi_detector":
            return ""
        setting = f"train.fine_tune_checkpoint_type: got 'classification', but {self.stored.where} is a whole detector"
        if {part_of(path) for path in self.stored.values} == {"backbone"}:
            return (
                f"{setting}, of which only the backbone fits; set it to 'detection', and train.fine_tune_include to "
                "['^backbone/']."
            )
        advice = "'full', 'all_but_classes' or 'detection'" if "head" in self.stored.parts else "'detection'"
        return f"{setting}; set it to {advice}."

    def _other_architecture(self) -> str:
        total = sum(_size(self.variables[path]) for path in self.wanted)
        others = [path for path in self.unusable if not self._is_class_size(path)]
        alike = total - sum(_size(self.variables[path]) for path in others)
        if alike >= _MIN_ALIKE * total and self.share > 0:
            return ""
        first = others[0] if others else next(iter(self.unusable))
        return (
            f"train.fine_tune_checkpoint: {self.stored.where} has another architecture than the configuration: of "
            f"{len(self.wanted)} variables to restore it has {len(self.wanted) - len(self.unusable)} with the right "
            f"shape; the first difference is {first} ({self.unusable[first]}){self._suggest_include()}."
        )

    def _is_class_size(self, path: str) -> bool:
        """Return True if only the number of classes makes the variable unusable."""
        if not depends_on_classes(path) or path not in self.stored.values:
            return False
        ours, theirs = tuple(self.variables[path].shape), self.stored.values[path].shape
        return len(ours) == len(theirs) and ours[:-1] == theirs[:-1] and ours != theirs

    def _other_classes(self) -> str:
        """Refuse 'full' if only the last class layer differs."""
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
        with_background = ", including the background" if background else ""
        is_background = abs(stored - channels) == 1
        hint = "; a difference of one may be the background (model.add_background_class)" if is_background else ""
        return (
            f"train.fine_tune_checkpoint_type: 'full' restores everything, but {self.stored.where} has {stored} "
            f"classes and this detector {channels}{with_background}{hint}; set it to 'all_but_classes', which keeps "
            "only the last class layer initialized."
        )

    def _other_shapes(self) -> str:
        if self.train.fine_tune_skip_mismatch:
            return ""
        differing = [path for path in self.unusable if path in self.stored.values]
        if not differing:
            return ""
        return (
            f"train.fine_tune_checkpoint: {self.stored.where} has {len(differing)} variables of another shape or "
            f"type, first {differing[0]}, {self.unusable[differing[0]]}; set train.fine_tune_skip_mismatch to true to "
            "leave them initialized."
        )

    def _too_little(self) -> str:
        absent = [path for path in self.unusable if path not in self.stored.values]
        if self.mode == "full" and absent and not self.train.fine_tune_skip_mismatch:
            return (
                f"train.fine_tune_checkpoint_type: 'full' restores everything, but {self.stored.where} lacks "
                f"{len(absent)} variables, first {absent[0]}; set train.fine_tune_skip_mismatch to true to leave them "
                "initialized."
            )
        least = self.train.fine_tune_min_restored_share
        part, share = min(self._share_by_part().items(), key=lambda item: item[1])
        if share >= least:
            return ""
        return (
            f"train.fine_tune_checkpoint: {self.stored.where} has {format_share(share)} of the parameters of the "
            f"{part} that '{self.mode}' restores, allowed: {least:.0%} (train.fine_tune_min_restored_share)"
            f"{self._suggest_include()}; `detloom restore-report` lists the absent variables."
        )
