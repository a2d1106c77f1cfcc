"""The folder in which files that can be downloaded or built again are kept for one user."""

import os
from pathlib import Path

from detloom.schemas.errors import InputError


def user_cache(name: str) -> Path:
    """Return the folder `name` of this user's cache: in XDG_CACHE_HOME, or ~/.cache; it may not exist yet.

    Raises:
        InputError: if the user has no home folder.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    base = base if os.path.isabs(base) else os.path.expanduser("~/.cache")
    if not os.path.isabs(base):
        raise InputError("this user has no home folder for downloads; set XDG_CACHE_HOME.")
    return Path(base) / "detloom" / name
