"""The hyperparameter search in TFX's Tuner: trials are short training runs, chosen by KerasTuner's algorithms.

KerasTuner stores its state in files that a killed process can leave truncated, so they are not read: an algorithm
draws the same values again from the same seed and the same scores. A restarted search therefore repeats its trials, and
finished trials return the score in their folder.
"""

import dataclasses
import hashlib
import json
import logging
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import keras
import keras_tuner
import tensorflow as tf

from detloom.schemas.contracts.metric_names import LOSS
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import TrainEvalConfig
from detloom.schemas.reading.text_file import write_text_file
from detloom.schemas.reading.typed_dict import from_json, to_canonical_json
from detloom.schemas.run_file.tuner import SearchRange, TunerSettings, apply_hyperparameters, search_space, shortened
from detloom.trainer_module.data.records import list_shards
from detloom.trainer_module.files.strict_json import read_number, to_strict_json
from detloom.trainer_module.run_state.evaluations import BestCheckpoints
from detloom.trainer_module.run_state.run_folder import data_fingerprint, run_key, unfinished_folder
from detloom.trainer_module.runtime.strategies import build_strategy
from detloom.trainer_module.tfx_run import TUNER_KEY, config_of, label_map_of, strategy_of
from detloom.trainer_module.training.loop import train
from detloom.trainer_module.weights.own_checkpoint import BEST_DIR, CHECKPOINTS_DIR

SCORE_FILE = "trial.json"  # in the folder of a finished trial
_SYSTEM_DIR = ".system"  # of a TFX node; TFX deletes the folders of an execution below it
_COMPLETED = keras_tuner.engine.trial.TrialStatus.COMPLETED
_LOGGER = logging.getLogger("detloom")


class TunerFnResult(NamedTuple):
    """The fields that TFX's Tuner expects; TFX's own class of that name has the same ones."""

    tuner: keras_tuner.engine.base_tuner.BaseTuner
    fit_kwargs: dict[str, Any]


def build_tuner(fn_args: Any) -> TunerFnResult:
    """Build the search of the Tuner component; `fn_args`: TFX's `FnArgs`.

    Raises:
        InputError: if the space does not fit the configuration, or a trial would use several machines.
    """
    settings = from_json(TunerSettings, fn_args.custom_config[TUNER_KEY])
    strategy = build_strategy(strategy_of(fn_args))
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        raise InputError("strategy: got 'multi_worker', allowed in the Tuner: strategies on one machine.")
    config, label_map = config_of(fn_args), label_map_of(fn_args)
    data = data_fingerprint(list_shards(fn_args.train_files), list_shards(fn_args.eval_files))
    with_code = data + json.dumps(fn_args.custom_config, sort_keys=True)  # scores of other code are not valid
    folder = _persistent_folder(Path(fn_args.working_dir)) / run_key(config, label_map, with_code)

    def train_trial(trial_config: TrainEvalConfig, out_dir: Path) -> None:
        train(trial_config, label_map, fn_args.train_files, fn_args.eval_files, out_dir, strategy)
        keras.utils.clear_session()

    return TunerFnResult(HyperparameterSearch(settings, config, folder, train_trial), {})


class HyperparameterSearch(keras_tuner.engine.base_tuner.BaseTuner):
    """Trials in folders below `folder`, each named by its configuration."""

    def __init__(
        self,
        settings: TunerSettings,
        config: TrainEvalConfig,
        folder: Path,
        train_trial: Callable[[TrainEvalConfig, Path], None],
    ) -> None:
        """Args: train_trial: trains a configuration in a folder and resumes the run in it, if any."""
        by_objective = dataclasses.replace(config.eval, best_metric=settings.objective, keep_best=1)
        quiet = dataclasses.replace(config.train, monitoring=dataclasses.replace(config.train.monitoring, num_images=0))
        self._settings, self._config = settings, dataclasses.replace(config, eval=by_objective, train=quiet)
        self._folder, self._train_trial = folder, train_trial
        self._error: InputError | None = None
        folder.mkdir(parents=True, exist_ok=True)
        oracle = _build_oracle(settings, search_space(settings, config))
        super().__init__(oracle=oracle, directory=str(folder), project_name="keras_tuner", overwrite=True)

    def search(self, *fit_args: Any, **fit_kwargs: Any) -> None:
        """Run the trials.

        Raises:
            InputError: if all trials failed, or three in a row.
        """
        try:
            super().search(*fit_args, **fit_kwargs)
        except RuntimeError as error:
            if self._error is None:
                raise
            raise InputError(f"The search ended because trials failed; the last error: {self._error}") from error
        if all(trial.status != _COMPLETED for trial in self.oracle.trials.values()):
            raise InputError(f"Every trial of the search failed; the last error: {self._error}") from self._error

    def run_trial(self, trial: Any, *fit_args: Any, **fit_kwargs: Any) -> dict[str, float]:
        """Return the score of the trial's values. An InputError fails only this trial."""
        values = dict(trial.hyperparameters.values)
        try:
            score = self._score(values)
        except InputError as error:  # such as a rate at which training diverges
            self._error = error
            _LOGGER.warning("Trial %s failed: %s", trial.trial_id, error)
            raise keras_tuner.errors.FailedTrialError(str(error)) from error
        except Exception as error:  # KerasTuner would count it as a bad score
            raise keras_tuner.errors.FatalError(str(error)) from error
        shown = ", ".join(f"{key} {value:.4g}" for key, value in values.items())
        _LOGGER.info("Trial %s: %s %.4f with %s.", trial.trial_id, self._settings.objective, score, shown)
        return {self._settings.objective: score}

    def _score(self, values: dict[str, Any]) -> float:
        """Return the stored score of a finished trial; otherwise train the trial."""
        config = shortened(apply_hyperparameters(self._config, values), self._settings.steps_per_trial)
        out_dir = self._folder / hashlib.sha256(to_canonical_json(config).encode()).hexdigest()[:16]
        file = out_dir / SCORE_FILE
        if not file.is_file():
            self._train_trial(config, out_dir)
            best = BestCheckpoints(out_dir / BEST_DIR, self._settings.objective, 1).best
            assert best is not None, out_dir  # training ends with an evaluation
            write_text_file(file, to_strict_json({"score": best.value, "step": best.step, "values": values}))
            for weights in (CHECKPOINTS_DIR, BEST_DIR):
                shutil.rmtree(out_dir / weights, ignore_errors=True)
        score = read_number(json.loads(file.read_text(encoding="utf-8"))["score"])
        if not math.isfinite(score):
            raise InputError(f"{out_dir}: {self._settings.objective} is not finite.")
        return score


def _build_oracle(settings: TunerSettings, space: tuple[SearchRange, ...]) -> keras_tuner.Oracle:
    parameters = keras_tuner.HyperParameters()
    for search in space:
        if search.choices:
            parameters.Choice(search.key, list(search.choices), ordered=True)
        else:
            sampling = "log" if search.log else "linear"
            parameters.Float(search.key, search.min, search.max, sampling=sampling)
    arguments: dict[str, Any] = {
        "objective": keras_tuner.Objective(settings.objective, "min" if settings.objective == LOSS else "max"),
        "max_trials": settings.max_trials,
        "seed": settings.seed + 1,  # KerasTuner treats 0 as no seed
        "hyperparameters": parameters,
    }
    match settings.algorithm:
        case "bayesian":
            return keras_tuner.oracles.BayesianOptimizationOracle(**arguments)
        case "random":
            return keras_tuner.oracles.RandomSearchOracle(**arguments)


def _persistent_folder(working_dir: Path) -> Path:
    """Return a folder outside of those that TFX deletes at the end of an execution."""
    parts = working_dir.parts
    node_dir = Path(*parts[: parts.index(_SYSTEM_DIR)]) if _SYSTEM_DIR in parts else working_dir
    return unfinished_folder(node_dir)
