import pytest
import tensorflow as tf

from detloom.schemas.contracts.label_map import format_label_map, parse_label_map
from detloom.trainer_module.data.class_lookup import ClassLookup, ClassTables

# A class with a code, as in Open Images, and one without.
TEXT = "item { id: 3 name: '/m/01g317' display_name: 'person' } item { id: 5 name: 'dog' }"
LABEL_MAP = parse_label_map(format_label_map(parse_label_map(TEXT)))


@pytest.mark.parametrize(
    ("class_ids", "texts", "refused", "dropped"),
    [
        ([3, 5], [], [3, 5], [3, 5]),
        ([], ["dog", "/m/01g317", "person"], [5, 3, 3], [5, 3, 3]),
        ([5, 3], ["", "person"], [5, 3], [5, 3]),
        ([5], ["person"], "class id 5 with the text 'person'", [3]),
        ([5], ["cat"], [5], [0]),
        ([5, 9, 0], [], "got class id 9, allowed: .* 3, 5; .*unknown_classes: drop", [5, 0, 0]),
        ([], ["cat", "dog"], "got class text 'cat'", [0, 5]),
        ([5], ["dog", "dog"], [5], [5]),  # texts that are not of the boxes
        ([], [], [], []),
    ],
)
def test_the_class_is_that_of_the_text_else_of_the_id_and_the_graph_agrees(class_ids, texts, refused, dropped):
    num_boxes, encoded = len(class_ids) or len(texts), [text.encode() for text in texts]
    # What the parser hands over: see `_ids_and_texts`.
    ids = tf.constant(class_ids or [0] * num_boxes, tf.int64)
    padded = tf.constant(encoded if len(texts) == num_boxes else [b""] * num_boxes, tf.string)
    for unknown_classes, expected in (("refuse", refused), ("drop", dropped)):
        lookup = ClassLookup(LABEL_MAP, unknown_classes)
        tables = ClassTables(lookup)
        if isinstance(expected, str):
            with pytest.raises(ValueError, match=expected):
                lookup.class_ids(class_ids, encoded, num_boxes)
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"a class[\s\S]*img_7"):
                tables.class_indices(ids, padded, tf.constant("img_7"))
            continue
        assert lookup.class_ids(class_ids, encoded, num_boxes) == expected
        indices = tables.class_indices(ids, padded, tf.constant("img_7")).numpy().tolist()
        assert [(*LABEL_MAP.class_ids, 0)[index] for index in indices] == expected
