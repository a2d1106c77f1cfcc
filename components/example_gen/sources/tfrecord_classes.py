"""The classes of existing TFRecords: texts and ids of examples against the label map beside them."""

import posixpath
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from detloom.components.example_gen.data_folder import DataFolder, SourceError
from detloom.components.example_gen.sources.json_values import is_text, show
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LABEL_MAP_FILE, build_label_map, parse_label_map_items

_MAX_LABEL_MAP_BYTES = 2**20


class NoClass(Exception):
    """Why the class of one object cannot be told."""


@dataclass(frozen=True)
class LabelMapFile:
    """The label map that goes with a file; `path` is "" where there is none.

    Attributes:
        ids_by_text: by the name of each class, and by its code where it has a name for people too.
    """

    path: str
    names_by_id: Mapping[int, str]
    ids_by_text: Mapping[str, int]

    def find_class(self, data: bytes, class_id: int | None) -> str:
        """The class's name: that of its text, where it has none that of its id.

        A text that the label map does not hold stands as it is, and is told as an unknown class later, unless it is the
        code of an item with a name for people: to take the id's name instead could turn a truck into a car. Where text
        and id are of two items, either may be wrong.

        Raises:
            NoClass: if it has neither, or they contradict each other.
        """
        try:
            text = data.decode().strip()
        except UnicodeDecodeError:
            text = ""
        of_id = None if class_id is None else self.names_by_id.get(class_id)
        if is_text(text):
            of_text = self.ids_by_text.get(text)
            if of_text is None:
                return text
            if class_id is not None and class_id > 0 and class_id != of_text:
                other = f"that is the id of {show(of_id)}" if of_id is not None else "which is no id of it"
                detail = f"class {show(text)} with id {class_id}, but in {self.path} its id is {of_text} ({other})"
                raise NoClass(detail)
            return self.names_by_id[of_text]
        if of_id is not None:
            return of_id
        got = show(data) if data else "no text"
        raise NoClass(f"class id {class_id} with {got} is no class, or of no label map")


def read_label_map(folder: DataFolder, path: str) -> LabelMapFile:
    """label_map.pbtxt, or the only *.pbtxt: beside the file, else at the top."""
    for part in dict.fromkeys((posixpath.dirname(path), "")):
        found = folder.list_files(part, (".pbtxt",))
        usual = [each for each in found if posixpath.basename(each) == LABEL_MAP_FILE]
        if usual or len(found) == 1:
            label_map_path = (usual or found)[0]
            where = f"{folder.root}/{label_map_path}"
            try:
                text = folder.read_text(label_map_path, _MAX_LABEL_MAP_BYTES)
            except SourceError as error:
                raise InputError(f"{where}: the label map cannot be read ({error.detail}).") from None
            items = parse_label_map_items(text, where)
            names_by_id = dict(build_label_map(items, where).names_by_id)
            # A code that is the name of another class, or stands twice, names none.
            num_items = Counter(item.name for item in items)
            codes = {item.name.strip(): item.class_id for item in items if item.name and num_items[item.name] == 1}
            return LabelMapFile(
                label_map_path, names_by_id, codes | {name.strip(): each for each, name in names_by_id.items()}
            )
    return LabelMapFile("", {}, {})
