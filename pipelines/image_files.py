"""The pictures that a command line names: files, folders, patterns. Each has a name that stays below any folder."""

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from detloom.components.example_gen.data_folder import DataFolder, SourceError
from detloom.components.example_gen.decoded_image import turn_upright
from detloom.components.example_gen.image_header import ImageError
from detloom.pipelines.serving.image_limits import check_header
from detloom.schemas.errors import InputError
from detloom.schemas.redact import escape

SUFFIXES = (".jpg", ".jpeg", ".png")
_MAX_FILE_BYTES = 64 * 2**20  # ingestion's default


@dataclass(frozen=True)
class ImageFile:
    """One picture.

    Attributes:
        folder: where it is looked for.
        name: path below `folder`, with forward slashes and without `..`.
        declared_hw: height and width that annotations say, where there are some.
    """

    folder: Path
    name: str
    declared_hw: tuple[int, int] | None = None

    @property
    def path(self) -> Path:
        return self.folder / self.name

    def read(self) -> tuple[bytes, int]:
        """Its bytes and the number of its pixels; turned upright where its EXIF data say so, as ingestion does.

        Where annotations say the size that is stored, and upright it would be another, they are of what is stored.

        Raises:
            InputError: naming it, when it cannot be read, is too large, no whole JPEG or PNG, or not of `declared_hw`.
        """
        shown = escape(str(self.path))
        try:
            image_bytes = DataFolder(str(self.folder)).read_bytes(self.name, _MAX_FILE_BYTES)
        except (SourceError, OSError) as error:
            reason = error.detail if isinstance(error, SourceError) else error.strerror
            raise InputError(f"{shown}: the image cannot be read ({reason}).") from None
        header = check_header(image_bytes, shown)
        stored_hw = (header.height, header.width)
        if self.declared_hw not in (None, stored_hw, header.upright_hw):
            got, allowed = (f"{hw[1]} x {hw[0]}" for hw in (stored_hw, self.declared_hw))
            raise InputError(f"{shown}: got {got} pixels, where the annotations say {allowed}.")
        if header.orientation != 1 and not self.declared_hw == stored_hw != header.upright_hw:
            try:
                image_bytes = turn_upright(image_bytes)
            except ImageError as error:
                raise InputError(f"{shown}: {error.detail}.") from None
        return image_bytes, header.height * header.width


def find_images(whats: Sequence[str], leave_out: Path | None = None) -> list[ImageFile]:
    """Each picture once, in the order of `whats`, then of names.

    A file is taken whatever it is called. Of a folder it is all pictures in it and below, hidden ones left out; of a
    pattern (`*`, `?`, `[...]`, `**`) those that match. Names count from the folder, or the part of the pattern that has
    no wildcard.

    Args:
        leave_out: a folder whose pictures are not taken, such as that of the output.

    Raises:
        InputError: what is not there or has no pictures; two pictures of the same name.
    """
    files: dict[Path, ImageFile] = {}
    for what in whats:
        found = _find(what)
        if not found:
            kinds = ", ".join(SUFFIXES)
            raise InputError(f"{escape(what)}: no pictures; looked for files that end with {kinds}.")
        for file in found:
            real = Path(os.path.realpath(file.path))
            if leave_out is None or not real.is_relative_to(leave_out.resolve()):
                files.setdefault(real, file)
    if not files:
        raise InputError(f"{escape(str(leave_out))}: all pictures lie in the folder of the output; give another.")
    by_name: dict[str, ImageFile] = {}
    for file in files.values():
        other = by_name.setdefault(file.name, file)
        if other is not file:
            both = f"{escape(str(other.path))} and {escape(str(file.path))}"
            raise InputError(f"{both}: would have the same name in the output; give the folder that holds both.")
    return list(by_name.values())


def _find(what: str) -> list[ImageFile]:
    path = Path(what)
    try:
        if path.is_dir():
            names = DataFolder(str(path)).list_files(suffixes=SUFFIXES, recursive=True)
            return [ImageFile(path, name) for name in names]
        if path.is_file():
            # Resolved, since of a folder no link leads out; this one was named by whoever asks.
            real = Path(os.path.realpath(path))
            return [ImageFile(real.parent, real.name)]
    except (OSError, ValueError) as error:  # a name that is too long, or has a NUL character
        raise InputError(f"{escape(what)[:200]}: cannot be read ({error}).") from None
    if not glob.has_magic(what):
        raise InputError(f"{escape(what)[:200]}: no such file or folder.")
    folder = _fixed_part(what)
    if ".." in Path(what).relative_to(folder).parts:  # such a name could lead out of the folder of the output
        raise InputError(f"{escape(what)}: got '..' behind a wildcard, allowed: before it.")
    found = sorted(each for each in glob.iglob(what, recursive=True) if each.lower().endswith(SUFFIXES))
    return [ImageFile(folder, Path(each).relative_to(folder).as_posix()) for each in found if os.path.isfile(each)]


def _fixed_part(pattern: str) -> Path:
    """The folders of a pattern before its first wildcard."""
    fixed = []
    for piece in Path(pattern).parts[:-1]:
        if glob.has_magic(piece):
            break
        fixed.append(piece)
    return Path(*fixed)
