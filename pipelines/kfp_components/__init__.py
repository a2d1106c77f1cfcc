"""Components for pipelines that are written with the SDK of Kubeflow Pipelines (kfp), without TFX.

`__init__.pyi` lists the public names, which are imported when they are first used; docs/kfp_components.md describes
them.
"""

from detloom.schemas.lazy_names import lazy_names as _lazy_names

__getattr__, __dir__, __all__ = _lazy_names(__name__, __file__)
