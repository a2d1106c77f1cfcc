"""TFX components. Each folder: component.py, executor.py, and the logic in TFX-free files.

`__init__.pyi` lists the public names, which are imported when they are first used; docs/components/ has a page for each
component.
"""

from detloom.schemas.lazy_names import lazy_names as _lazy_names

__getattr__, __dir__, __all__ = _lazy_names(__name__, __file__)
