"""Steps with a non-finite loss, gradient, learning rate or weight, and the decisions about them."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

from detloom.schemas.errors import InputError
from detloom.schemas.model.config import NonFinite
from detloom.schemas.reading.text_file import write_text_file
from detloom.schemas.reading.typed_dict import from_dict
from detloom.trainer_module.files.strict_json import to_strict_json

NONFINITE_FILE = "nonfinite.json"


@dataclass(frozen=True, kw_only=True)
class Incident:
    """A step that was not finite.

    Attributes:
        step: number of steps before it; its batch is the data's batch at this step.
        learning_rate: learning rate of that step; None if it was not finite.
        keys: images of its batch.
        skipped: the batch is skipped from now on.
        rate_factor: factor on the learning rate from now on.
    """

    step: int
    learning_rate: float | None
    keys: tuple[str, ...]
    skipped: bool
    rate_factor: float

    def consequence(self) -> str:
        """Describe what changes from now on."""
        if self.skipped:
            return "this batch is skipped from now on"
        return f"from now on the learning rate is {self.rate_factor:.3g} times what is configured"


class Incidents:
    """The incidents of a run, in a file beside its checkpoints, so that a resumed run follows the same decisions."""

    def __init__(self, path: Path, policy: NonFinite) -> None:
        self._path, self._policy = path, policy
        self._all: list[Incident] = []
        if path.is_file():
            try:
                rows = json.loads(path.read_text(encoding="utf-8"))
                self._all = [from_dict(Incident, row, locate=lambda _: path.name) for row in rows]
            except (ValueError, TypeError, RecursionError) as error:
                raise InputError(f"{path}: bad incident list ({error}); delete it, or train elsewhere.") from None

    def __len__(self) -> int:
        return len(self._all)

    @property
    def skipped_steps(self) -> frozenset[int]:
        return frozenset(incident.step for incident in self._all if incident.skipped)

    @property
    def rate_factor(self) -> float:
        return self._all[-1].rate_factor if self._all else 1.0

    def has_diverged(self) -> bool:
        """Return True if the last two incidents are consecutive steps or one step at two rates: the weights diverge."""
        if len(self._all) < 2:
            return False
        before, last = self._all[-2:]
        return last.step == before.step + int(last.skipped)

    def add(self, step: int, learning_rate: float, keys: tuple[str, ...]) -> Incident:
        """Decide by the policy and record the decision before anything is done.

        Raises:
            InputError: if the policy is to stop, or the limit of incidents is exceeded.
        """
        action = self._policy.action
        incident = Incident(
            step=step,
            learning_rate=learning_rate if math.isfinite(learning_rate) else None,
            keys=keys,
            skipped=action == "skip_batch",
            rate_factor=self.rate_factor * (self._policy.rate_factor if action == "lower_rate" else 1.0),
        )
        if action == "stop" or len(self._all) >= self._policy.max_times:
            count, allowed = len(self._all) + 1, self._policy.max_times
            times = f" That was incident {count}; train.nonfinite.max_times is {allowed}." if action != "stop" else ""
            raise InputError(f"{describe_incident(incident)}{times} {_ADVICE}")
        self._all.append(incident)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_text_file(self._path, to_strict_json([asdict(event) for event in self._all], indent=1))
        return incident


def describe_incident(incident: Incident) -> str:
    """Describe step, rate and images in one sentence."""
    return (
        f"Loss, gradients or weights became non-finite in step {incident.step + 1} at a learning rate of "
        f"{'infinity' if incident.learning_rate is None else format(incident.learning_rate, '.3g')}; "
        f"images: {', '.join(incident.keys)}."
    )


_ADVICE = (
    "Check these images and their boxes; lower train.optimizer.learning_rate, use a longer warm-up, or set "
    "train.gradient_clipping; train.nonfinite sets the reaction to NaN. To continue in the same folder anyway, "
    f"delete {NONFINITE_FILE} there."
)
