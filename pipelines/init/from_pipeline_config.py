"""Write a run file for a pipeline.config of the Object Detection API.

The run file names the pipeline.config, which stays unchanged and is read by `schemas/odapi`, and adds the places of the
inputs on this machine.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detloom.pipelines.check_learned_columns import check_learned_columns
from detloom.pipelines.init.odapi_inputs import EVAL, TRAIN, OdapiInputs, find_inputs
from detloom.pipelines.init.run_file_text import Choices, check_no_variable, make_pipeline_name, written_run_file
from detloom.schemas.contracts.ground_truth import KEYPOINTS, MASKS
from detloom.schemas.errors import InputError
from detloom.schemas.load_config import build_config
from detloom.schemas.model.checkpoint_address import is_web_address
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.model.config_checks import warnings_before_run
from detloom.schemas.odapi.pipeline_config import PipelineConfigReport, parse_pipeline_config, refusal
from detloom.schemas.reading.text_file import read_text_file
from detloom.schemas.run_file.run_file import RunFile, check_name
from detloom.trainer_module.detectors.families import family_of
from detloom.trainer_module.detectors.supported import unsupported_settings

_USUAL_NAME = "pipeline"  # of a configuration; its folder says more
# Settings that the Object Detection API's TF2 loop ignores, with the value that has no effect.
_TF1_ONLY = {"freeze_variables": (), "update_trainable_variables": (), "bias_grad_multiplier": 1.0}


def name_of_config(config: Path) -> str:
    """Return a name for the pipeline of a pipeline.config."""
    path = config.absolute()
    return make_pipeline_name(path.parent.name if path.stem == _USUAL_NAME else path.stem)


def write_migration(
    config: Path, output: Path, name: str, records: Path | None = None, checkpoint: str | None = None
) -> tuple[str, ...]:
    """Write the run file; replace an existing one.

    Args:
        output: the run file.
        name: name of the pipeline.
        records: folder of the TFRecord files, instead of those in the configuration.
        checkpoint: initial weights, instead of those in the configuration; empty for random weights.

    Returns:
        What the user has to decide, one sentence each; they are also comments at the top of the file.

    Raises:
        InputError: if the configuration has refused fields, or an input is not usable here.
    """
    check_name(name)
    report = parse_pipeline_config(read_text_file(config), str(config))
    if report.refused:
        raise refusal(report)
    parsed = build_config(report.located)
    unsupported = unsupported_settings(parsed)
    if unsupported:
        raise InputError(f"{config}: this version cannot train the configuration. {' '.join(unsupported)}")
    inputs = find_inputs(config, report, records, checkpoint)
    check_no_variable(str(inputs.root))
    choices = _choose(config, output, name, parsed, inputs, is_other_checkpoint=checkpoint is not None)
    header = f"Written by `detloom init --from-odapi` for {os.path.abspath(config)}"
    with written_run_file(choices, header, output) as run:
        check_learned_columns(run)
        decisions = tuple(_decisions(run, report, inputs))
    to_decide = "".join(f"\n- {each}" for each in decisions)
    with written_run_file(choices, f"{header}. To decide:{to_decide}", output):
        return decisions


def _choose(
    config: Path,
    output: Path,
    name: str,
    parsed: TrainEvalConfig,
    inputs: OdapiInputs,
    *,
    is_other_checkpoint: bool,
) -> Choices:
    folder = Path(os.path.abspath(output)).parent
    reasons: dict[str, str] = {}
    data: dict[str, Any] = {"format": "tfrecord", "path": _relative(inputs.root, folder)}
    reasons["data.path"] = f"label map: {inputs.label_map_path}, {inputs.label_map.num_classes} classes"
    train_source = inputs.sources[TRAIN]
    source = inputs.sources.get(EVAL, train_source)
    if source != train_source:
        data["splits"] = {"train": train_source, "eval": source, "test": source}
        reasons["data.splits"] = "`test` measures the exported model; the Object Detection API has no such split"
    else:
        data["split_by_ratio"] = {"source": train_source}
        reasons["data.split_by_ratio"] = "the configuration names no other records for evaluation"
    columns = family_of(parsed.model).ground_truth_columns
    data |= {key: True for key, column in (("masks", MASKS), ("keypoints", KEYPOINTS)) if column in columns}
    settings: dict[str, Any] = {"name": name, "data": data, "detector": _relative(config, folder)}
    reasons["detector"] = "stays as it is; the sections below override its values"
    num_classes = inputs.label_map.num_classes
    if parsed.model.num_classes not in (None, num_classes):
        settings["model"] = {"num_classes": num_classes}
        reasons["model.num_classes"] = (
            f"the configuration has {parsed.model.num_classes}; here the detector has one output per class of the "
            "label map, and none for unused ids"
        )
    if inputs.checkpoint or parsed.train.fine_tune_checkpoint:
        is_path = inputs.checkpoint.startswith("/")
        checkpoint = _relative(Path(inputs.checkpoint), folder) if is_path else inputs.checkpoint
        train = {"fine_tune_checkpoint": checkpoint}
        if is_other_checkpoint and inputs.checkpoint:
            train["fine_tune_checkpoint_type"] = "auto"
            reasons["train.fine_tune_checkpoint_type"] = "that of the configuration is for another checkpoint"
        settings["train"] = train
    return Choices(settings, reasons)


def _relative(path: Path, folder: Path) -> str:
    """Return a path as the run file in `folder` names it: relative to it if it is inside."""
    path = Path(os.path.abspath(path))
    return os.path.relpath(path, folder) if path.is_relative_to(folder) else str(path)


def _decisions(run: RunFile, report: PipelineConfigReport, inputs: OdapiInputs) -> Iterator[str]:
    """Yield what the user has to decide or to check, the most important first."""
    yield from inputs.notes
    train = run.train
    if run.data.splits is not None:
        yield (
            "data.splits.test is the evaluation split, which also selects the checkpoint, so that the results are "
            "optimistic: name records that are used for nothing else."
        )
    else:
        yield "data.split_by_ratio divides the training records: name evaluation and test records if you have them."
    if not train.fine_tune_checkpoint:
        yield "Training starts from random weights: set train.fine_tune_checkpoint to start from others."
    elif is_web_address(train.fine_tune_checkpoint) and "#" not in train.fine_tune_checkpoint:
        yield (
            "train.fine_tune_checkpoint has no hash: add #sha256=... to the address, so that another file is refused."
        )
    if train.fine_tune_checkpoint and report.located.get(("train", "fine_tune_checkpoint_type")) is None:
        yield (
            "The configuration has no fine_tune_checkpoint_type: the Object Detection API restores a classification "
            "backbone then, detloom what fits (auto)."
        )
    for key, without_effect in _TF1_ONLY.items():
        if getattr(train, key) != without_effect:
            yield f"train.{key} has an effect; the Object Detection API's TF2 loop ignores it: remove it to do so too."
    yield from warnings_before_run(run.config)
    if not run.gates.floors:
        yield (
            "gates has no floors: a model is pushed if it is better than chance and not worse than the one that "
            "serves; set gates.floors to what your application needs."
        )
    if not run.push_to:
        yield f"push_to is not set: models are pushed to detloom_runs/{run.name}/serving."
