"""Write a run file for a folder of labelled images."""

import logging
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from detloom.pipelines.init.choose_settings import check_time, choose_settings, limit_time
from detloom.pipelines.init.run_file_text import check_no_variable, make_pipeline_name, written_run_file
from detloom.pipelines.init.scan_data import DataScan, scan_data
from detloom.pipelines.local.console import show_log
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.presets.recipes import DEFAULT_QUALITY, Quality
from detloom.schemas.reading.format_duration import format_duration
from detloom.schemas.reading.overrides import Located
from detloom.schemas.run_file.read_config import read_sections
from detloom.schemas.run_file.read_run_file import read_run_file
from detloom.schemas.run_file.run_file import RunFile, check_name

_LOGGER = logging.getLogger("detloom")
_RUN_FILE = "run.yaml"  # in the workspace of a folder that is run without a run file


@dataclass(frozen=True, kw_only=True)
class InitOptions:
    """Options of `detloom init`; everything that is None is chosen.

    Attributes:
        seconds: time limit of the run, for which the step time is measured.
        data_format: format of the labels.
    """

    quality: Quality | None = None
    seconds: float | None = None
    data_format: str | None = None


def read_run_source(
    source: Path, workspace: Path | None, overrides: Sequence[Located], options: InitOptions | None = None
) -> RunFile:
    """Read a run file; for a folder of images, write one into the workspace first.

    Args:
        options: for a folder only; None keeps the settings of an earlier run of the folder.

    Raises:
        InputError: the run file is invalid, or no settings fit the folder.
    """
    if source.is_dir():
        workspace = workspace or Path("detloom_runs", make_pipeline_name(source.resolve().name))
        source = _prepare_run_file(source, workspace, options)
    elif options is not None:
        raise InputError(
            f"{source}: --budget, --quality and --format need a folder of images; a run file states its own settings."
        )
    return read_run_file(source, workspace, overrides)


def _prepare_run_file(folder: Path, workspace: Path, options: InitOptions | None) -> Path:
    started = time.monotonic()
    show_log()
    run_file = workspace / _RUN_FILE
    if run_file.exists():
        data_folder = (workspace / read_sections(run_file).data.path).resolve()
        if data_folder != folder.resolve():
            raise InputError(f"{run_file}: its data is {data_folder}, not {folder}; set --workspace to another folder.")
        if options is None:
            _LOGGER.info("Using the settings in %s; give --budget, --quality or --format to choose again.", run_file)
            return run_file
    name = make_pipeline_name(folder.resolve().name)
    write_run_file(folder, run_file, name, options or InitOptions(), started)
    _LOGGER.info("Wrote %s; its comments explain the settings.", run_file)
    return run_file


def write_run_file(folder: Path, output: Path, name: str, options: InitOptions, started: float) -> None:
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
    if options.seconds is not None:
        check_time(options.seconds)
    scan = scan_data(root, options.data_format or "")
    _LOGGER.info("%s: %s images, %s objects.", folder, scan.total_images, sum(scan.boxes_by_class.values()))
    quality = options.quality or DEFAULT_QUALITY
    choices = choose_settings(scan, name, quality)
    splits = next(text for key, text in choices.reasons.items() if key in ("data.splits", "data.split_by_ratio"))
    _LOGGER.info("Splits: %s.", splits)
    header = f"Written by `detloom init` for {root}, quality {quality}"
    if options.seconds is not None:
        header += f", budget {format_duration(options.seconds)}"
        with (
            tempfile.TemporaryDirectory(prefix="detloom-") as temporary,
            written_run_file(choices, header, Path(temporary, output.name)) as unlimited,
        ):
            step_seconds = _measure_step(unlimited.config, scan)
        limit_time(choices, scan, quality, step_seconds, options.seconds, spent=time.monotonic() - started)
    with written_run_file(choices, f"{header}.", output):
        pass


def _measure_step(config: TrainEvalConfig, scan: DataScan) -> float:
    from detloom.trainer_module.training.step_time import measure_step_seconds  # late: imports TensorFlow

    _LOGGER.info("Measuring the time of a training step, which takes about a minute ...")
    return measure_step_seconds(config, list(scan.boxes_by_class), scan.image_hw)
