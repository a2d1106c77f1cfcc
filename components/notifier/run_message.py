"""Messages about a run: text for people and JSON for programs."""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any

from detloom.schemas.reading.redact import escape, hide_secrets
from detloom.schemas.run_file.notifications import Event

_MAX_REASON = 1000  # characters; enough for a decision with many gates
_MAX_NAME = 200  # characters of the name of a run or node, or of an address
SENDER = "detloom"
_VERTEX_RUN = re.compile(r"projects/([A-Za-z0-9:.-]+)/locations/([a-z0-9-]+)/pipelineJobs/([A-Za-z0-9_-]+)")
# Chat programs interpret these as links and mentions, and messages may contain class and file names of a data set.
_CHAT_MARKS = str.maketrans({"<": "＜", ">": "＞", "@": "＠"})


@dataclass(frozen=True, kw_only=True)
class RunMessage:
    """One event of one run.

    Attributes:
        place: where the pipeline runs: local, kubeflow or vertex.
        run: name or id of the run; empty if unknown.
        subject: identity of the event across repeated runs, such as the address of a version; empty for the run itself.
        node: the node that failed.
        reason: cause of the event, in sentences.
        version: version of the pushed model; empty for an endpoint.
        destination: address that the model was pushed to.
        numbers: main metrics by name.
        links: addresses by label, as made by `run_link`; they are not escaped.
        time: UTC, ISO 8601.
    """

    event: Event
    pipeline: str
    place: str
    run: str = ""
    subject: str = ""
    machine: str = ""
    node: str = ""
    reason: str = ""
    version: str = ""
    destination: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    time: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))

    def __post_init__(self) -> None:
        """Make untrusted texts safe, and drop numbers that are not finite, because JSON has none of these."""
        for name in ("pipeline", "run", "machine", "node", "version", "destination"):
            object.__setattr__(self, name, _clean(getattr(self, name), _MAX_NAME))
        object.__setattr__(self, "reason", _clean(self.reason, _MAX_REASON))
        finite = {name: float(value) for name, value in self.numbers.items() if math.isfinite(value)}
        object.__setattr__(self, "numbers", finite)

    @property
    def id(self) -> str:
        """Return an id that is equal for the same event and subject, so that a receiver can drop duplicates."""
        subject = self.subject or self.run or f"{self.machine} {self.time}"
        known = "\0".join((self.pipeline, self.place, self.event, subject))
        return hashlib.sha256(known.encode()).hexdigest()[:32]

    @property
    def title(self) -> str:
        """Return a title of one line."""
        match self.event:
            case "failed":
                return f"{self.pipeline} failed in {self.node}" if self.node else f"{self.pipeline} failed"
            case "refused":
                return f"{self.pipeline}: the model was refused"
            case "pushed":
                return f"{self.pipeline}: {f'version {self.version}' if self.version else 'a model'} was pushed"
            case "skipped":
                return f"{self.pipeline}: training was skipped"

    def to_text(self) -> str:
        """Return the message as lines of text, the title first."""
        lines = [
            self.title,
            self.reason,
            _format_numbers(self.numbers),
            f"To: {self.destination}" if self.destination else "",
            f"Run: {', '.join(filter(None, (self.run, self.place, self.machine)))}",
            *(f"{what}: {address}" for what, address in self.links.items()),
        ]
        return "\n".join(filter(None, lines))

    def to_payload(self) -> dict[str, Any]:
        """Return the JSON payload: `text` for people, the rest for programs. Empty fields are left out."""
        text = self.to_text().translate(_CHAT_MARKS)
        payload = {"text": text, "sender": SENDER, "id": self.id, **asdict(self), "subject": ""}
        return {name: value for name, value in payload.items() if value}


class NotSentError(Exception):
    """A message could not be sent; the text is part of a sentence.

    Attributes:
        is_temporary: True if another attempt may succeed.
    """

    def __init__(self, reason: str, *, is_temporary: bool = False) -> None:
        super().__init__(reason)
        self.is_temporary = is_temporary


def run_link(place: str, run_id: str, kubeflow_host: str = "") -> dict[str, str]:
    """Return a link to the run in the web interface of the backend; empty if it is unknown.

    Args:
        run_id: id of the run on Kubeflow, resource name of the job on Vertex AI.
        kubeflow_host: address of the web interface.
    """
    job = _VERTEX_RUN.fullmatch(run_id)
    if place == "vertex" and job:
        project, region, name = job.groups()
        page = f"https://console.cloud.google.com/vertex-ai/locations/{region}/pipelines/runs/{name}?project={project}"
        return {"Page of the run": page}
    if place == "kubeflow" and kubeflow_host and re.fullmatch(r"[A-Za-z0-9-]+", run_id):
        return {"Page of the run": f"{kubeflow_host.rstrip('/')}/#/runs/details/{run_id}"}
    return {}


def _format_numbers(numbers: Mapping[str, float]) -> str:
    """Format metrics, for example "AP 0.512 (0.480 to 0.540), AP50 0.801"."""
    parts = []
    for name, value in numbers.items():
        low, high = numbers.get(f"{name}_low"), numbers.get(f"{name}_high")
        interval = f" ({low:.3f} to {high:.3f})" if low is not None and high is not None else ""
        if not name.endswith(("_low", "_high")):
            parts.append(f"{name} {value:.3f}{interval}")
    return ", ".join(parts)


def _clean(text: str, max_length: int) -> str:
    """Return the text on one line, truncated and without secrets in addresses."""
    shown = escape(hide_secrets(text[: 4 * max_length]))
    return shown if len(shown) <= max_length else f"{shown[:max_length]}..."
