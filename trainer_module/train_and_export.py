"""Train a detector in a folder and export the best weights, without TFX."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from detloom.schemas.contracts.detections import SERVING_FOLDER
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.model.strategy import Strategy, StrategyKind
from detloom.schemas.reading.replace_when_done import replace_when_done
from detloom.trainer_module.export.saved_model import export_saved_model
from detloom.trainer_module.run_state.run_folder import hold_training_lock
from detloom.trainer_module.run_state.train_result import TrainResult
from detloom.trainer_module.runtime.strategies import build_strategy, is_chief
from detloom.trainer_module.training.loop import train
from detloom.trainer_module.weights.own_checkpoint import write_weights

MODEL_DIR = "model"  # in the output folder: the exported model
LOCK_FILE = ".train.lock"  # in the output folder, and kept there


def train_and_export(
    config: TrainEvalConfig,
    label_map: LabelMap,
    train_files: Sequence[str],
    eval_files: Sequence[str],
    out_dir: Path,
    strategy_kind: StrategyKind | None,
    *,
    export: bool = True,
) -> tuple[TrainResult, Path | None]:
    """Train, or resume the training run in `out_dir`; return the result and the folder of the exported model, if any.

    Raises:
        InputError: the settings or the data do not fit, or another process trains in `out_dir`.
        Preempted: a signal stopped the training run; its state is saved.
    """
    strategy = build_strategy(Strategy(kind=strategy_kind) if strategy_kind else None)
    with contextlib.ExitStack() as stack:
        if is_chief(strategy):
            out_dir.mkdir(parents=True, exist_ok=True)
            stack.enter_context(hold_training_lock(out_dir / LOCK_FILE))
        result = train(config, label_map, train_files, eval_files, out_dir, strategy)
        has_export = export and is_chief(strategy)
        return result, export_model(result, out_dir / MODEL_DIR) if has_export else None


def export_model(result: TrainResult, model_dir: Path) -> Path:
    """Write SavedModel and weights; an existing model is replaced once the new one is complete."""
    with replace_when_done(model_dir) as partial:
        write_weights(result.detector, result.config, partial)
        export_saved_model(result.detector, result.config, partial / SERVING_FOLDER)
    return model_dir
