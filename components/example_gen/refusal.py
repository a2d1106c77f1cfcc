"""Whether what was refused is too much for the run to go on."""

from collections.abc import Mapping
from typing import Any

from detloom.components.example_gen import work_files
from detloom.components.example_gen.ingest_job import IngestJob
from detloom.schemas.errors import InputError
from detloom.schemas.rejects import Reject, parse_reject


class RefusedDataError(InputError):
    """Too much of the data was refused; everything was written, with this sentence in the report."""

    def __init__(self, message: str, report: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.report = report


def find_refusal(job: IngestJob, report: Mapping[str, Any]) -> str:
    """Why the data are refused, in one sentence; "" where they are not. A replay never is: it was refused before."""
    if job.only:
        return ""
    for split in job.split_folders:
        counts = report["splits"][split]
        if counts["num_written"] == 0:
            return f"{job.root}: split {split!r}{_why_empty(job, split, counts, report)}."
    quarantined, rejected = report["num_quarantined"], report["num_boxes_rejected"]
    return _check_share(job, "record", quarantined, report["num_in"]) or _check_share(
        job, "box", rejected, rejected + report["num_boxes_written"]
    )


def _why_empty(job: IngestJob, split: str, counts: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    if counts["num_in"]:
        source = f" ({job.sources[split]})" if job.sources.get(split) else ""
        reasons = _format_reasons(counts["rejects_by_reason"])
        return f"{source} is empty, all of its {counts['num_in']} records were refused ({reasons})"
    if report["num_written"]:
        return (
            f" got none of the {report['num_written']} records that were divided; give it a larger share, or take "
            "another seed"
        )
    reasons = _format_reasons(report["rejects_by_reason"])
    return f" is empty, all {report['num_in']} records were refused ({reasons})"


def _check_share(job: IngestJob, scope: str, num_refused: int, num_read: int) -> str:
    if num_refused <= job.params.max_reject_fraction * num_read:
        return ""
    reasons: dict[str, int] = {}
    first: Reject | None = None
    folder = f"{job.staging}/rejects"
    for name in work_files.list_names(folder):
        for line in work_files.read_lines(f"{folder}/{name}"):
            reject = parse_reject(line)
            if reject.scope == scope:
                count = 1 if scope == "record" else reject.num_boxes
                reasons[reject.reason.value] = reasons.get(reject.reason.value, 0) + count
                first = first or reject
    assert first is not None
    return (
        f"{job.root}: {num_refused} of {num_read} {'records' if scope == 'record' else 'boxes'} "
        f"({num_refused / num_read:.1%}) were refused, allowed: {job.params.max_reject_fraction:.1%} "
        f"(max_reject_fraction); reasons: {_format_reasons(reasons)}; the first is {first.file}: {first.detail}."
    )


def _format_reasons(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
