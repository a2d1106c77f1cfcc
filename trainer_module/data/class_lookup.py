"""The class of a stored box: by its text, else by its id, as in the Object Detection API (tf_example_decoder.py)."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import tensorflow as tf

from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import list_first

_ADVICE = "use the label map that the data were written with"


@dataclass(frozen=True)
class ClassLookup:
    """The classes of a label map; `unknown_classes` is that of `InputReader`."""

    label_map: LabelMap
    unknown_classes: Literal["refuse", "drop"] = "refuse"

    @cached_property
    def ids_by_text(self) -> dict[str, int]:
        """Ids by name, and by code for classes that have a display name too."""
        return dict(self.label_map.codes) | {name: class_id for class_id, name in self.label_map.names_by_id}

    @cached_property
    def _known(self) -> frozenset[int]:
        return frozenset(self.label_map.class_ids)

    def class_ids(self, class_ids: Sequence[int], texts: Sequence[bytes], num_boxes: int) -> list[int]:
        """Return the label-map id of each stored class; 0 for one that is dropped.

        Args:
            class_ids, texts: as stored. Ids may be missing if each box has a text. Other numbers of texts are ignored.

        Raises:
            ValueError: if a class is unknown, or a text contradicts its id.
        """
        has_texts = len(texts) == num_boxes and len(class_ids) in (0, num_boxes)
        stored_texts = [text.decode("utf-8", errors="replace") for text in texts] if has_texts else []
        found = []
        for class_id, text in itertools.zip_longest(class_ids, stored_texts):
            of_text = self.ids_by_text.get(text, 0)
            of_id = class_id if class_id in self._known else 0
            if self.unknown_classes == "drop":
                found.append(of_text if text else of_id)
            elif of_text and class_id and class_id != of_text:
                raise ValueError(
                    f"got class id {class_id} with the text {text!r}, but in the label map {class_id} is "
                    f"{self.label_map.name_of(class_id)!r} and {text!r} is {of_text}; {_ADVICE}."
                )
            elif of_text or of_id:
                found.append(of_text or of_id)
            else:
                got = f"class id {class_id}" if class_id is not None else f"class text {text!r}"
                hint = " Ids start at 1: 0 is background." if class_id == 0 else ""
                raise ValueError(
                    f"got {got}, allowed: the ids of the label map, {list_first(self.label_map.class_ids)}; {_ADVICE}, "
                    f"or leave out such boxes with train_input.unknown_classes: drop.{hint}"
                )
        return found


class ClassTables:
    """The same in TensorFlow."""

    def __init__(self, lookup: ClassLookup) -> None:
        """Create the tables from ids and texts to class indices."""
        class_ids = lookup.label_map.class_ids
        self.drops = lookup.unknown_classes == "drop"
        self._by_id = _table(tf.constant(class_ids, tf.int64), list(class_ids), class_ids)
        self._by_text = _table(list(lookup.ids_by_text), list(lookup.ids_by_text.values()), class_ids)

    def class_indices(self, class_ids: tf.Tensor, texts: tf.Tensor, source_id: tf.Tensor) -> tf.Tensor:
        """Return the class index of each box, int32 [G]; -1 for a box that is dropped.

        Args:
            class_ids, texts: int64 [G] and string [G], 0 and "" where not stored.

        Raises:
            tf.errors.InvalidArgumentError: at run time, as `ClassLookup.class_ids`.
        """
        of_id, of_text = self._by_id.lookup(class_ids), self._by_text.lookup(texts)
        if self.drops:
            return tf.where(tf.strings.length(texts) > 0, of_text, of_id)
        indices = tf.where(of_text >= 0, of_text, of_id)
        is_known = (indices >= 0) & ((of_text < 0) | (class_ids == 0) | (of_id == of_text))
        message = ["a class that does not fit the label map: record, class ids, texts:", source_id, class_ids, texts]
        tf.debugging.Assert(tf.reduce_all(is_known), message, summarize=20)
        return indices


def _table(keys: tf.Tensor | list[str], ids: list[int], class_ids: tuple[int, ...]) -> tf.lookup.StaticHashTable:
    indices = tf.constant([class_ids.index(class_id) for class_id in ids], tf.int32)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, indices), default_value=-1)
