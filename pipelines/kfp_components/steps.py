"""The steps of a run as functions of kfp's artifacts; the containers of `components_of` run them.

kfp reads their signatures and docstrings when a pipeline is compiled. So annotations are objects, not texts, and what
the steps need is imported inside of them: a machine that only compiles needs kfp, but neither TensorFlow nor TFX.
"""
# ruff: noqa: B006 - kfp writes the defaults into the component; nobody changes them

import contextlib
import inspect
import json
import logging
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, get_origin

from kfp import dsl

from detloom.components.example_gen.command_settings import command_settings

if TYPE_CHECKING:
    from detloom.schemas.reading.overrides import Located
    from detloom.schemas.run_file.run_file import RunFile

_LOGGER = logging.getLogger("detloom")
_MAIN_METRICS = ("AP", "AP50")
# The first statement of a pipeline.config, after comments. In YAML, a colon would follow the name.
_PROTO_TEXT = re.compile(r"(\s|#.*\n)*\w+\s*\{")


def _with_settings(step: Callable[..., None]) -> Callable[..., None]:
    """Give a step the signature and the documentation of its settings, which it takes as keywords."""
    settings = command_settings().values()
    parameters = dict(inspect.signature(step).parameters)
    del parameters["settings"]
    for setting in settings:
        kind = _KFP_TYPES.get(get_origin(setting.annotation), setting.annotation)
        default = kind() if setting.default is None or kind is list else setting.default
        parameters[setting.name] = inspect.Parameter(
            setting.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
        )
    step.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    lines = (f"    {setting.name}: {setting.doc}\n" for setting in settings)
    documentation = inspect.getdoc(step) or ""  # without indentation in all versions of Python
    step.__doc__ = documentation.replace("    settings: see `command_settings`.\n", "".join(lines))
    return step


_KFP_TYPES: Mapping[Any, type] = {Literal: str, tuple: list, dict: dict}


@_with_settings
def ingest(
    data: str,
    *,
    num_workers: int = 1,
    examples: dsl.Output[dsl.Dataset],
    rejects: dsl.Output[dsl.Artifact],
    metrics: dsl.Output[dsl.Metrics],
    **settings: Any,
) -> None:
    """Read a labelled data set and write checked tf.Examples.

    Args:
        data: Folder of the data set in the container, such as a folder on a volume, or its address at `gs://`.
        num_workers: Number of processes.
        settings: see `command_settings`.

    Returns:
        examples: TFRecord shards in one folder per split, and the label map.
        rejects: Rejected records and boxes with their reasons, and the counts.
        metrics: Numbers of images and boxes that were read, written and rejected.
    """
    from detloom.components.example_gen.ingest import IngestFolders
    from detloom.components.example_gen.ingest import ingest as ingest_data
    from detloom.components.example_gen.params import ExampleGenParams
    from detloom.pipelines.local.beam_pipelines import pipeline_maker
    from detloom.pipelines.local.console import log_nodes
    from detloom.schemas.reading.typed_dict import from_dict

    log_nodes(verbose=False)
    params = from_dict(ExampleGenParams, settings, locate=lambda _: "ingest")
    report = ingest_data(data, params, IngestFolders(examples.path, rejects.path), pipeline_maker(num_workers))
    _log_metrics(metrics, {name: value for name, value in report.items() if name.startswith("num_")})


def validate(
    examples: dsl.Input[dsl.Dataset],
    *,
    config: str = "",
    train_split: str = "",
    num_workers: int = 1,
    report: dsl.Output[dsl.Artifact],
    page: dsl.Output[dsl.HTML],
) -> None:
    """Check examples before training: boxes, classes, leakage between splits, and whether the anchors fit.

    The task fails if a check of severity `fail` does not pass.

    Args:
        examples: Output of `ingest`.
        config: As for `train`. Its input size and anchors are compared with the boxes; the `checks` of a run file set
            severities and limits. Default: no comparison, and the default checks.
        train_split: Split to compare the others with. Default: `train`, else the first.
        num_workers: Number of processes.

    Returns:
        report: `report.json`, and the page.
        page: The page with distributions, images and findings.
    """
    from detloom.components.dataset_validator.report.validation_page import REPORT_HTML
    from detloom.components.dataset_validator.validate import describe_failures
    from detloom.pipelines.local.console import log_nodes
    from detloom.pipelines.validate_folder import format_checks, validate_folder
    from detloom.schemas.errors import InputError

    log_nodes(verbose=False)
    with _config_file(config) as source:
        found = validate_folder(
            Path(examples.path), Path(report.path), config=source, train_split=train_split, num_workers=num_workers
        )
    print(format_checks(found), flush=True)
    shutil.copyfile(Path(report.path) / REPORT_HTML, page.path)
    if found["verdict"] == "failed":
        raise InputError(f"{examples.uri}: {describe_failures(found)}")


def train(
    examples: dsl.Input[dsl.Dataset],
    config: str,
    *,
    overrides: dict = {},
    train_split: str = "train",
    eval_split: str = "",
    model: dsl.Output[dsl.Model],
    model_run: dsl.Output[dsl.Artifact],
    metrics: dsl.Output[dsl.Metrics],
) -> None:
    """Train a detector, evaluate it regularly, and export the best weights.

    Args:
        examples: Output of `ingest`.
        config: Name of a preset, path of a configuration in the container, or the content of a run file, of a
            `pipeline.config` or of the `config.json` of a training run. The `export` section of a run file chooses
            further formats. Paths in it are paths in the container.
        overrides: Values by key in place of those of `config`, such as `{"train.num_steps": 2000}`.
        train_split: Split to train on.
        eval_split: Split to evaluate on during training. Default: `eval`, `val`, `valid` or `validation`.

    Returns:
        model: SavedModel and weights.
        model_run: Configuration, checkpoints, log and TensorBoard files of the training run.
        metrics: Metrics of the best weights on `eval_split`, and their step.
    """
    from detloom.pipelines.find_examples import find_examples
    from detloom.pipelines.local.console import show_log
    from detloom.pipelines.python_api import read_overrides
    from detloom.schemas.contracts.detections import SERVING_FOLDER
    from detloom.schemas.reading.typed_dict import to_canonical_json
    from detloom.schemas.run_file.read_config import read_training_config
    from detloom.trainer_module.run_state.train_result import SUMMARY_FILE
    from detloom.trainer_module.tfx_run import CONFIG_KEY, EXPORT_KEY, STRATEGY_KEY, run

    show_log()
    layers = read_overrides(overrides)
    with _config_file(config) as source:
        settings = {CONFIG_KEY: to_canonical_json(read_training_config(source, layers))}
        run_file = _read_run_file(source, layers)
    if run_file is not None:
        settings[STRATEGY_KEY] = to_canonical_json(run_file.trainer.strategy)
        settings[EXPORT_KEY] = to_canonical_json(run_file.export)
    found = find_examples(Path(examples.path), train_split, eval_split)
    arguments = SimpleNamespace(
        train_files=list(found.train_files),
        eval_files=list(found.eval_files),
        custom_config=settings,
        serving_model_dir=f"{model.path}/{SERVING_FOLDER}",
        model_run_dir=model_run.path,
        hyperparameters=None,
        base_model=None,
    )
    run(arguments)  # what TFX's Trainer calls
    summary = json.loads((Path(model_run.path) / SUMMARY_FILE).read_text("utf-8"))
    _log_metrics(metrics, {"best_step": summary["best_step"], **_main_metrics(summary["best"])})


def evaluate(
    model: dsl.Input[dsl.Model],
    examples: dsl.Input[dsl.Dataset],
    *,
    split: str = "test",
    config: str = "",
    production: str = "",
    evaluation: dsl.Output[dsl.Artifact],
    page: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
    curves: dsl.Output[dsl.ClassificationMetrics],
    blessed: dsl.OutputPath(bool),  # type: ignore[valid-type]
) -> None:
    """Evaluate an exported model, compare it with the model that serves now, and decide whether to push it.

    The result may change with the model that serves now: disable caching for this task if `production` is set.

    Args:
        model: Output of `train`.
        examples: Output of `ingest`.
        split: Split to evaluate on.
        config: As for `train`. The `evaluator` and `gates` of a run file are used; other configurations have none.
        production: Folder of versions in the container, or its address: the `push_to` of `push`. The version that
            serves now is the baseline. Default: no baseline.

    Returns:
        evaluation: Metrics, detections and the decision as files.
        page: The report.
        metrics: Main metrics, AP by class, and the decision.
        curves: Precision and recall by score, and the confusion matrix.
        blessed: True if all gates pass.
    """
    from detloom.components.evaluator.report.output_files import (
        PAGE_FILE,
        confidence_metrics,
        confusion_matrix,
        metric_properties,
    )
    from detloom.components.examples_folder import ExamplesFolder
    from detloom.pipelines import python_api
    from detloom.pipelines.local.console import show_log

    show_log()
    with _config_file(config) as source:
        run_file = _read_run_file(source)
    with _production_model(production, Path(model.path)) as baseline:
        result = python_api.evaluate(
            model.path,
            ExamplesFolder(examples.path).split_folder(split),
            out=evaluation.path,
            baseline=baseline,
            settings=run_file.evaluator if run_file else None,
            gates=run_file.gates if run_file else None,
        )
    print(result.decision.sentence, flush=True)
    shutil.copyfile(Path(evaluation.path) / PAGE_FILE, page.path)
    _log_metrics(metrics, metric_properties(result))
    curves.metadata["confidenceMetrics"] = confidence_metrics(result.candidate)
    curves.metadata["confusionMatrix"] = confusion_matrix(result.candidate)
    Path(blessed).write_text(json.dumps(result.decision.blessed), "utf-8")


def push(
    model: dsl.Input[dsl.Model],
    evaluation: dsl.Input[dsl.Artifact],
    push_to: str,
    *,
    keep_versions: int = 0,
    allow_class_change: bool = False,
    address: dsl.OutputPath(str),  # type: ignore[valid-type]
) -> None:
    """Push a blessed model into a folder of versions: copy, compare, load, rename.

    A model that is not blessed, has other classes than the one that serves, or was rolled back, is not pushed; this is
    not an error. The folder also changes outside of pipelines: disable caching for this task.

    Args:
        model: Output of `train`.
        evaluation: Output of `evaluate` for this model.
        push_to: Folder of versions in the container, such as a folder on a volume, or its address at `gs://`.
        keep_versions: Remove the oldest versions beyond this number (2 or more). Default: keep all.
        allow_class_change: Replace a model that has other classes, or whose classes are unknown.

    Returns:
        address: The version that serves now, or an empty text if the model was not pushed.
    """
    from detloom.components.evaluator.blessing import BlessingDecision
    from detloom.components.evaluator.report.output_files import DECISION_FILE, METRICS_FILE
    from detloom.components.pusher.manifest import Origin
    from detloom.components.pusher.push import NotPushedError, push_model
    from detloom.pipelines.local.console import show_log
    from detloom.schemas.reading.text_file import read_text_file
    from detloom.trainer_module.inference.model_files import find_saved_model

    show_log()
    decision = BlessingDecision.from_dict(json.loads(read_text_file(Path(evaluation.path) / DECISION_FILE)))
    Path(address).write_text("", "utf-8")
    if not decision.blessed:
        _LOGGER.info("Not pushed. %s", decision.sentence)
        return
    metrics = json.loads((Path(evaluation.path) / METRICS_FILE).read_text("utf-8"))["candidate"]
    origin = Origin(
        model_uri=model.uri,
        blessing={
            "uri": evaluation.uri,
            "blessed": True,
            "sentence": decision.sentence,
            "forms": list(decision.forms),
        },
        metrics=_main_metrics(metrics),
    )
    try:
        result = push_model(
            find_saved_model(Path(model.path)),
            push_to,
            origin=origin,
            keep_versions=keep_versions,
            allow_class_change="any" if allow_class_change else "none",
            allow_rolled_back=False,
            expected_digest=decision.model_digest,
        )
    except NotPushedError as error:
        _LOGGER.warning("Not pushed. %s", error)
        return
    _LOGGER.info("%s: %s", "Pushed" if result.is_new else "Nothing to do, this model is served", result.address)
    Path(address).write_text(result.address, "utf-8")


@contextlib.contextmanager
def _config_file(config: str) -> Iterator[str]:
    """Yield what the commands take as a configuration: a name or a path as it is, content as a file of its format."""
    if "\n" not in config:
        yield config
        return
    suffix = ".json" if config.lstrip().startswith("{") else ".config" if _PROTO_TEXT.match(config) else ".yaml"
    with tempfile.TemporaryDirectory(prefix="detloom-") as folder:
        path = Path(folder, f"config{suffix}")
        path.write_text(config, "utf-8")
        yield str(path)


def _read_run_file(source: str, layers: "Sequence[Located]" = ()) -> "RunFile | None":
    """Return the run file; None for other configurations."""
    from detloom.schemas.run_file.read_config import is_run_file, read_sections

    return read_sections(source, layers) if is_run_file(source) else None


@contextlib.contextmanager
def _production_model(production: str, candidate: Path) -> Iterator[Path | None]:
    """Yield a copy of the model that serves now; None without a folder, or if nothing else was pushed yet."""
    from detloom.components.resolvers.copy_version import copy_production_model
    from detloom.schemas.reading.redact import redact
    from detloom.trainer_module.inference.model_files import find_saved_model

    with tempfile.TemporaryDirectory(prefix="detloom-") as folder:
        copy = Path(folder, "model")
        found = copy_production_model(production, copy, find_saved_model(candidate)) if production else None
        if found is not None:
            _LOGGER.info("The baseline is version %s in %s.", found.version, redact(production))
        elif production:
            _LOGGER.info("%s: no other model serves; there is no baseline.", redact(production))
        yield copy if found is not None else None


def _main_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return those of the main metrics that were measured, from `CocoMetrics.to_dict`."""
    return {name: metrics[name] for name in _MAIN_METRICS if metrics[name] is not None and metrics[name] >= 0}


def _log_metrics(metrics: Any, values: Mapping[str, float]) -> None:
    """Set the metadata of a `system.Metrics` artifact, which user interfaces show."""
    for name, value in values.items():
        metrics.log_metric(name, value)
