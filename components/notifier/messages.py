"""Messages about a run: text for people and JSON for programs."""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from detloom.schemas.reading.redact import escape, hide_secrets
from detloom.schemas.run_file.notifications import Event

MAX_REASON = 1000  # characters; enough for a decision with many gates
MAX_NAME = 200  # characters of the name of a run or node, or of an address
SENDER = "detloom"
_VERTEX_RUN = re.compile(r"projects/([A-Za-z0-9:.-]+)/locations/([a-z0-9-]+)/pipelineJobs/([A-Za-z0-9_-]+)")
# Chat programs interpret these as links and mentions, and messages may contain class and file names of a data set.
_CHAT_MARKS = str.maketrans({"<": "＜", ">": "＞", "@": "＠"})


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@dataclass(frozen=True, kw_only=True)
class Message:
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
    time: str = field(default_factory=_now)

    @property
    def id(self) -> str:
        """Return an id that is equal for the same event and subject, so that a receiver can drop duplicates."""
        subject = self.subject or self.run or f"{self.machine} {self.time}"
        known = "\0".join((self.pipeline, self.place, self.event, subject))
        return hashlib.sha256(known.encode()).hexdigest()[:32]

    @property
    def title(self) -> str:
        """Return a title of one line."""
        name = _clean(self.pipeline, MAX_NAME)
        match self.event:
            case "failed":
                return f"{name} failed in {_clean(self.node, MAX_NAME)}" if self.node else f"{name} failed"
            case "refused":
                return f"{name}: the model was refused"
            case "pushed":
                what = f"version {_clean(self.version, MAX_NAME)}" if self.version else "a model"
                return f"{name}: {what} was pushed"
            case "skipped":
                return f"{name}: training was skipped"

    def to_text(self) -> str:
        """Return the message as lines of text, the title first."""
        where = ", ".join(filter(None, (_clean(self.run, MAX_NAME), self.place, _clean(self.machine, MAX_NAME))))
        lines = [
            self.title,
            _clean(self.reason, MAX_REASON),
            _format_numbers(self._finite_numbers()),
            f"To: {_clean(self.destination, MAX_NAME)}" if self.destination else "",
            f"Run: {where}",
            *(f"{what}: {address}" for what, address in self.links.items()),
        ]
        return "\n".join(filter(None, lines))

    def to_payload(self) -> dict[str, Any]:
        """Return the JSON payload: `text` for people, the rest for programs. Empty fields are left out."""
        known = {
            "text": self.to_text().translate(_CHAT_MARKS),
            "sender": SENDER,
            "id": self.id,
            "event": self.event,
            "pipeline": _clean(self.pipeline, MAX_NAME),
            "place": self.place,
            "time": self.time,
            "run": _clean(self.run, MAX_NAME),
            "machine": _clean(self.machine, MAX_NAME),
            "node": _clean(self.node, MAX_NAME),
            "reason": _clean(self.reason, MAX_REASON),
            "version": _clean(self.version, MAX_NAME),
            "destination": _clean(self.destination, MAX_NAME),
            "numbers": self._finite_numbers(),
            "links": dict(self.links),
        }
        return {name: value for name, value in known.items() if value}

    def _finite_numbers(self) -> dict[str, float]:
        """Return the finite metrics; JSON has no NaN and no infinity."""
        return {_clean(name, MAX_NAME): float(value) for name, value in self.numbers.items() if math.isfinite(value)}


def run_link(place: str, run_id: str, kubeflow_host: str = "") -> dict[str, str]:
    """Return a link to the run in the web interface of the backend; empty if it is unknown.

    Args:
        run_id: id of the run on Kubeflow, resource name of the job on Vertex AI.
        kubeflow_host: address of the API, which is also that of the web interface.
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
    ends = {f"{name}{end}" for name in numbers for end in ("_low", "_high")} & set(numbers)
    parts = []
    for name, value in numbers.items():
        if name not in ends:
            low, high = numbers.get(f"{name}_low"), numbers.get(f"{name}_high")
            interval = f" ({low:.3f} to {high:.3f})" if low is not None and high is not None else ""
            parts.append(f"{name} {value:.3f}{interval}")
    return ", ".join(parts)


def _clean(text: str, max_length: int) -> str:
    """Return the text on one line, truncated and without secrets in addresses."""
    shown = escape(hide_secrets(text[: 4 * max_length]))
    return shown if len(shown) <= max_length else f"{shown[:max_length]}..."
