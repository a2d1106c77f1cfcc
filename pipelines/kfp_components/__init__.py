"""Components for pipelines that are written with the SDK of Kubeflow Pipelines (kfp), without TFX.

The public names are imported when they are first used; docs/kfp_components.md describes them.
"""

import importlib as _importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detloom.pipelines.kfp_components.build import KfpComponents, components_of
    from detloom.pipelines.kfp_components.steps import evaluate, ingest, push, train, validate

__all__ = ["KfpComponents", "components_of", "evaluate", "ingest", "push", "train", "validate"]

_MODULES = {
    "KfpComponents": "detloom.pipelines.kfp_components.build",
    "components_of": "detloom.pipelines.kfp_components.build",
    "evaluate": "detloom.pipelines.kfp_components.steps",
    "ingest": "detloom.pipelines.kfp_components.steps",
    "push": "detloom.pipelines.kfp_components.steps",
    "train": "detloom.pipelines.kfp_components.steps",
    "validate": "detloom.pipelines.kfp_components.steps",
}


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(_importlib.import_module(_MODULES[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
