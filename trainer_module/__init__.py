"""Train object detectors with TensorFlow and Keras; this package does not import TFX.

TFX's Trainer calls `run_fn` (`run_fn="detloom.trainer_module.run_fn"`), its Tuner calls `tuner_fn`. TFX reloads this
module, so it defines no class and imports no large package.
"""

from typing import Any


def run_fn(fn_args: Any) -> None:
    """Train, then export to `fn_args.serving_model_dir`. `fn_args`: TFX's `FnArgs`."""
    from detloom.trainer_module.tfx_run import run

    run(fn_args)


def tuner_fn(fn_args: Any) -> Any:
    """Return the hyperparameter search as TFX's `TunerFnResult`. `fn_args`: TFX's `FnArgs`."""
    from detloom.trainer_module.tuner import build_tuner

    return build_tuner(fn_args)
