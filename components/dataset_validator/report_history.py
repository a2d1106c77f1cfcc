"""Reports that outlive a run where nothing else keeps them, in a folder or at an address.

span-00000012.json      report.json of span 12, as it passed the checks: what the next span is compared with
failed-00000012.html    the page of span 12, as it did not pass them
failed.html             the same of data without spans
"""

import contextlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from absl import logging

from detloom.components.dataset_validator.drift import read_previous_report
from detloom.components.dataset_validator.report import REPORT_JSON
from detloom.components.small_files import list_names, read_bytes, write_bytes
from detloom.schemas.errors import InputError
from detloom.schemas.redact import show_address

_NAME = re.compile(r"span-([0-9]{1,18})\.json")
_MAX_BYTES = 256 << 20


@contextlib.contextmanager
def earlier_report(history: str, span: int | None) -> Iterator[Path | None]:
    """A copy of the report of the latest span before this one; None where there is none, no history or no span.

    Raises:
        OSError: the storage does not answer.
    """
    if not history or span is None:
        yield None
        return
    spans = {int(match[1]) for name in list_names(history) if (match := _NAME.fullmatch(name))}
    with tempfile.TemporaryDirectory(prefix="detloom-report-") as folder:
        copies = (_copy(history, each, Path(folder)) for each in sorted(spans, reverse=True) if each < span)
        yield next((copy for copy in copies if copy), None)


def _copy(history: str, span: int, folder: Path) -> Path | None:
    """None for a file that was cut off, or is gone."""
    data = read_bytes(history, _name(span), _MAX_BYTES)
    if data is None:
        return None
    copy = folder / REPORT_JSON
    copy.write_bytes(data)
    try:
        read_previous_report(copy)
    except InputError as error:
        logging.warning("%s: left out: %s", show_address(f"{history}/{_name(span)}"), error)
        return None
    logging.info("DatasetValidator: the report of span %d at %s is compared with.", span, show_address(history))
    return copy


def keep_report(history: str, span: int, report: Path) -> None:
    """Write a report.json under its span, instead of what an earlier run has written there; nothing without a history.

    Raises:
        OSError: it cannot be written.
    """
    if history:
        write_bytes(history, _name(span), report.read_bytes())


def keep_failed_page(history: str, span: int | None, page: Path) -> str:
    """Write the page of data that did not pass, and return where it is.

    Raises:
        OSError: it cannot be written.
    """
    name = "failed.html" if span is None else f"failed-{span:08d}.html"
    write_bytes(history, name, page.read_bytes())
    return f"{history.rstrip('/')}/{name}"


def _name(span: int) -> str:
    return f"span-{span:08d}.json"
