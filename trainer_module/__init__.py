"""Training object detectors with TensorFlow and Keras; no TFX in here.

`run_fn` is what TFX's Trainer calls (`run_fn="detloom.trainer_module.run_fn"`), `tuner_fn` what its Tuner calls. TFX
reloads this module, so it defines no class and imports nothing heavy.
"""

from typing import Any


def run_fn(fn_args: Any) -> None:
    """Train, then export to `fn_args.serving_model_dir`. `fn_args` is TFX's `FnArgs`."""
    from detloom.trainer_module.tfx_run import run

    run(fn_args)


def tuner_fn(fn_args: Any) -> Any:
    """The search for hyperparameters, as TFX's `TunerFnResult`. `fn_args` is TFX's `FnArgs`."""
    from detloom.trainer_module.tuner import build_tuner

    return build_tuner(fn_args)
