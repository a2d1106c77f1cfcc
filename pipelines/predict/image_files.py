"""Find the images that a command line names by files and folders; names are relative to a folder."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from detloom.components.example_gen.data_folder import DataFolder, SourceError
from detloom.components.example_gen.decoded_image import turn_upright
from detloom.components.image_header import ImageError
from detloom.pipelines.predict.image_limits import check_header
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import escape
from detloom.schemas.run_file.data import Data

SUFFIXES = (".jpg", ".jpeg", ".png")
OTHER_SUFFIXES = (".webp", ".bmp", ".tif", ".tiff", ".gif", ".heic", ".avif")  # images that models do not read


@dataclass(frozen=True)
class ImageFile:
    """An image file.

    Attributes:
        folder: the folder that contains it.
        name: path below `folder`, with forward slashes and without `..`.
        declared_hw: height and width in the annotations, if any.
    """

    folder: Path
    name: str
    declared_hw: tuple[int, int] | None = None

    @property
    def path(self) -> Path:
        return self.folder / self.name

    @property
    def shown(self) -> str:
        """The path for messages."""
        return escape(str(self.path))

    def read(self) -> tuple[bytes, int]:
        """Return the encoded image, rotated upright by its EXIF orientation as in ingestion, and its number of pixels.

        The image is not rotated if the annotations declare the stored size and rotation would change it.

        Raises:
            InputError: with the file name, if it is unreadable, too large or damaged, or differs from `declared_hw`.
        """
        shown = self.shown
        try:
            image_bytes = DataFolder(str(self.folder)).read_bytes(self.name, Data.max_image_bytes)
        except (SourceError, OSError) as error:
            reason = error.detail if isinstance(error, SourceError) else error.strerror
            raise InputError(f"{shown}: the image cannot be read ({reason}).") from None
        return prepare_image(image_bytes, shown, self.declared_hw)


def prepare_image(image_bytes: bytes, shown: str, declared_hw: tuple[int, int] | None = None) -> tuple[bytes, int]:
    """Check an encoded image and rotate it, see `ImageFile.read`; `shown` is its name in error messages."""
    header = check_header(image_bytes, shown)
    stored_hw = (header.height, header.width)
    if declared_hw not in (None, stored_hw, header.upright_hw):
        got, allowed = (f"{hw[1]} x {hw[0]}" for hw in (stored_hw, declared_hw))
        raise InputError(f"{shown}: got {got} pixels, but the annotations say {allowed}.")
    if header.orientation != 1 and not declared_hw == stored_hw != header.upright_hw:
        try:
            image_bytes = turn_upright(image_bytes, header.orientation)
        except ImageError as error:
            raise InputError(f"{shown}: {error.detail}.") from None
    return image_bytes, header.height * header.width


def find_images(sources: Sequence[str], leave_out: Path | None = None) -> list[ImageFile]:
    """Return each image once, in the order of `sources`, then of names.

    A file is accepted with any extension. A folder gives all images in it and below, except hidden ones, with names
    relative to the folder.

    Args:
        leave_out: a folder whose images are skipped, such as the output folder.

    Raises:
        InputError: if a source does not exist or has no images, or two images have the same name.
    """
    files: dict[Path, ImageFile] = {}
    for source in sources:
        images = _find(source)
        if not images:
            kinds = ", ".join(SUFFIXES)
            unread = find_other_images([source])
            convert = f" Convert its {len(unread)} images of other formats ({escape(unread[0])})." if unread else ""
            raise InputError(f"{escape(source)}: no images; searched for files that end with {kinds}.{convert}")
        for file in images:
            real = Path(os.path.realpath(file.path))
            if leave_out is None or not real.is_relative_to(leave_out.resolve()):
                files.setdefault(real, file)
    if not files:
        raise InputError(
            f"{escape(str(leave_out))}: all images are in the output folder; choose another output folder."
        )
    by_name: dict[str, ImageFile] = {}
    for file in files.values():
        other = by_name.setdefault(file.name, file)
        if other is not file:
            both = f"{escape(str(other.path))} and {escape(str(file.path))}"
            raise InputError(f"{both}: would have the same name in the output; pass the folder that contains both.")
    return list(by_name.values())


def find_other_images(sources: Sequence[str]) -> list[str]:
    """Return the name of each image in these folders that is neither JPEG nor PNG by its extension."""
    found: dict[str, str] = {}
    for folder in (source for source in sources if Path(source).is_dir()):
        for name in DataFolder(folder).list_files(suffixes=OTHER_SUFFIXES, recursive=True):
            found.setdefault(os.path.realpath(f"{folder}/{name}"), name)
    return list(found.values())


def _find(source: str) -> list[ImageFile]:
    path = Path(source)
    try:
        if path.is_dir():
            names = DataFolder(str(path)).list_files(suffixes=SUFFIXES, recursive=True)
            return [ImageFile(path, name) for name in names]
        if path.is_file():
            # Resolve links: DataFolder follows no link out of its folder, but the user named this file.
            real = Path(os.path.realpath(path))
            return [ImageFile(real.parent, real.name)]
    except (OSError, ValueError) as error:  # a name that is too long, or contains a NUL character
        raise InputError(f"{escape(source)[:200]}: cannot be read ({error}).") from None
    raise InputError(f"{escape(source)[:200]}: no such file or folder.")
