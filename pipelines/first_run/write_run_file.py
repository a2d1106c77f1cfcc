"""Write a run file for a folder of labelled images."""

import logging
import re
import tempfile
import time
from pathlib import Path

from detloom.pipelines.first_run.choose_settings import choose_settings, limit_time
from detloom.pipelines.first_run.run_file_text import check_no_variable, write_and_check
from detloom.pipelines.first_run.scan_data import DataScan, scan_data
from detloom.pipelines.first_run.wishes import Wishes
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.reading.format_duration import format_duration
from detloom.schemas.run_file.run_file import check_name

_LOGGER = logging.getLogger(__name__)


def name_of_folder(folder: Path) -> str:
    """Return a name for the pipeline of a folder."""
    name = re.sub(r"[^a-z0-9_-]+", "-", folder.resolve().name.lower()).strip("-_")
    return name[:63] or "detector"


def write_run_file(folder: Path, output: Path, name: str, wishes: Wishes, started: float) -> None:
    """Scan a folder, choose the settings, and write the run file.

    Args:
        output: the file; it is replaced.
        name: name of the pipeline.
        started: time from which the limit counts, by `time.monotonic()`.

    Raises:
        InputError: if the folder has no labelled images, the name or the path cannot be written to a run file, or the
            time is too short.
    """
    check_name(name)
    root = str(folder.resolve())
    check_no_variable(root)
    scan = scan_data(root, wishes.data_format)
    _LOGGER.info("%s: %s images, %s objects.", folder, scan.total_images, sum(scan.boxes_by_class.values()))
    choices = choose_settings(scan, name, wishes.quality)
    header = f"Written by `detloom init` for {root}, quality {wishes.quality}"
    if wishes.seconds is not None:
        header += f", budget {format_duration(wishes.seconds)}"
        with tempfile.TemporaryDirectory(prefix="detloom-") as temporary:
            config = write_and_check(choices, header, Path(temporary, output.name)).config
        step_seconds = _measure_step(config, scan)
        limit_time(choices, scan, wishes.quality, step_seconds, wishes.seconds, spent=time.monotonic() - started)
    output.parent.mkdir(parents=True, exist_ok=True)
    draft = output.with_name(f".{output.name}.draft")
    try:
        write_and_check(choices, header, draft)
        draft.replace(output)
    finally:
        draft.unlink(missing_ok=True)


def _measure_step(config: TrainEvalConfig, scan: DataScan) -> float:
    from detloom.trainer_module.training.step_time import measure_step_seconds  # late: imports TensorFlow

    _LOGGER.info("Measuring the time of a training step, which takes about a minute ...")
    return measure_step_seconds(config, list(scan.boxes_by_class), scan.image_hw)
