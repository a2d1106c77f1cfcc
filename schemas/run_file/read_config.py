"""Read a configuration from any source: a run file, a `pipeline.config`, a `config.json`, or the name of a preset."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from detloom.schemas.load_config import apply_layer, build_config, load_tree
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.odapi.pipeline_config import PipelineConfigReport, refusal
from detloom.schemas.reading.overrides import Located, merge
from detloom.schemas.reading.typed_dict import to_dict
from detloom.schemas.run_file.read_run_file import build_run, load_run_tree, resolve_checkpoint
from detloom.schemas.run_file.run_file import RunFile


def is_run_file(source: str) -> bool:
    return source.endswith((".yaml", ".yml"))


def load_source(source: str, overrides: Sequence[Located] = ()) -> tuple[Located, PipelineConfigReport | None]:
    """Return the merged tree of a source and its overrides, and the report of a `pipeline.config`."""
    if is_run_file(source):
        return load_run_tree(Path(source), overrides)
    over = merge(Located({}, lambda _: source), *overrides)
    tree, report = load_tree(source, Path(), above=over)
    return (apply_layer(tree, over) if overrides else tree), report


def read_source(source: str, overrides: Sequence[Located] = ()) -> RunFile | TrainEvalConfig:
    """Read a source; the paths in a run file stay as written.

    Raises:
        InputError: as for running it.
    """
    tree, report = load_source(source, overrides)
    if report is not None and report.refused:
        raise refusal(report)
    return build_run(tree) if is_run_file(source) else build_config(tree)


def read_effective(source: str, overrides: Sequence[Located] = ()) -> dict[str, Any]:
    """Return all values of a source as plain data, with defaults."""
    return dict(to_dict(read_source(source, overrides)))


def read_config(source: str, overrides: Sequence[Located] = ()) -> TrainEvalConfig:
    """Read the configuration of the detector and its training."""
    content = read_source(source, overrides)
    return content.config if isinstance(content, RunFile) else content


def read_training_config(source: str, overrides: Sequence[Located] = ()) -> TrainEvalConfig:
    """Read a configuration to train on this machine; resolve its fine-tune checkpoint relative to the run file."""
    config = read_config(source, overrides)
    if not is_run_file(source):
        return config
    return replace(config, train=resolve_checkpoint(config.train, Path(source), overrides))


def read_sections(run_file: Path | str, overrides: Sequence[Located] = ()) -> RunFile:
    """Read a run file for some of its sections; its paths stay as written.

    Raises:
        InputError: the file or a value is invalid.
    """
    return build_run(load_run_tree(Path(run_file), overrides)[0])
