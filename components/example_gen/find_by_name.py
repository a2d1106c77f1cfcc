"""Find images that are not where their annotations say, by a file name that only one folder of the data set has.

Only the names of folders are kept, so memory does not grow with the number of images.
"""

import posixpath
from collections.abc import Sequence

from detloom.components.example_gen.data_folder import DataFolder
from detloom.components.example_gen.sources.layout import find_image, find_split_word
from detloom.components.example_gen.sources.source_record import SourceRecord
from detloom.components.storage.storage import Storage, is_address

_MAX_FOLDERS = 1000  # each costs a look-up for each missing image
_SHOWN = 3


class ImageSearch:
    """A search in one data folder.

    Args:
        staging: the workers of one ingestion share the list of folders in `cache_file`.
    """

    def __init__(self, folder: DataFolder, staging: Storage, cache_file: str) -> None:
        self._folder, self._staging, self._cache_file = folder, staging, cache_file
        self._folders: Sequence[str] | None = None

    def find(self, record: SourceRecord) -> tuple[str, str]:
        """Return the path of the record's missing image and "", or "" and the reason why it is not found.

        A file of another split is not the image: splits often number their images alike.
        """
        if is_address(self._folder.root):  # listing a bucket to find a few images could take days
            return "", "the file is missing"
        folders = self._list_folders()
        if len(folders) > _MAX_FOLDERS:
            return "", f"the file is missing; it was not searched in the more than {_MAX_FOLDERS} folders of the data"
        here, name = posixpath.split(record.image_path)
        stem = posixpath.splitext(name)[0]
        paths = [posixpath.join(folder, name) for folder in folders]
        found = [path for path in paths if self._folder.is_file(path)]
        if not found:
            stems = [posixpath.join(folder, stem) for folder in folders]
            found = [path for path in (find_image(self._folder, each) for each in stems) if path]
        split = find_split_word(here) or find_split_word(record.annotation_path) or find_split_word(record.split)
        if len(found) == 1:
            found_split = find_split_word(posixpath.dirname(found[0]))
            if not split or found_split in ("", split):
                return found[0], ""
        return "", _explain(name, found, split)

    def _list_folders(self) -> Sequence[str]:
        if self._folders is None:
            if not self._staging.exists(self._cache_file):
                self._staging.write_json(self._cache_file, self._walk(), is_ascii=True)
            self._folders = self._staging.read_json(self._cache_file)
        return self._folders

    def _walk(self) -> list[str]:
        """Return the folders below the data folder, itself first; at most one more than are searched."""
        found = [""]
        for folder in found:  # grows meanwhile
            found.extend(self._folder.list_folders(folder))
            if len(found) > _MAX_FOLDERS:
                break
        return found


def _explain(name: str, found: list[str], split: str) -> str:
    if not found:
        return f"the file is missing, and no folder of the data set has a file named {name!r:.80}"
    shown = ", ".join(found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
    if len(found) == 1:
        return f"the file is missing; {shown} has its name, but belongs to another split than {split!r}"
    return f"the file is missing; {len(found)} files have its name: {shown}; set images_dir to the folder of the images"
