"""Protocol buffers, which the test asks through TensorFlow, read what was serialized without them."""

import numpy as np
import pytest
import tensorflow as tf

from detloom.components.example_gen.encode_example import bytes_feature, encode_example, float_feature, int_feature


def test_protocol_buffers_read_the_same_values_from_as_many_bytes():
    image = bytes(range(256)) * 100  # its length takes three bytes
    texts = [b"Zelle", "細胞".encode(), b""]
    floats = [0.1, -1.5, 3e38]
    ints = [0, 1, 127, 128, 300, 2**62, -1]
    example = tf.train.Example()
    feature = example.features.feature
    feature["image/encoded"].bytes_list.value.append(image)
    feature["b"].bytes_list.value.extend(texts)
    feature["a/float"].float_list.value.extend(floats)
    feature["a"].int64_list.value.extend(ints)
    feature["flags"].int64_list.value.extend([True, False])
    feature["key of more than 127 bytes" * 5].int64_list.value.append(7)
    features = {
        "image/encoded": bytes_feature([image]),
        "b": bytes_feature(texts),
        "flags": int_feature([True, False]),
        "a/float": float_feature(np.array(floats)),
        "a": int_feature(ints),
        "key of more than 127 bytes" * 5: int_feature((7,)),
    }
    encoded = encode_example(features)
    assert tf.train.Example.FromString(encoded) == example
    assert len(encoded) == example.ByteSize()


def test_the_bytes_of_an_example_are_sorted_by_key():
    encoded = encode_example({"b": int_feature([1, 300]), "a": bytes_feature([b"xy"])})
    # key "a", bytes_list (1) of one value (1) with 2 bytes; key "b", int64_list (3), packed (1): 1 and 300 = 0xac 0x02
    first = b"\x0a\x0b" + b"\x0a\x01a" + b"\x12\x06" + b"\x0a\x04" + b"\x0a\x02xy"
    second = b"\x0a\x0c" + b"\x0a\x01b" + b"\x12\x07" + b"\x1a\x05" + b"\x0a\x03\x01\xac\x02"
    assert encoded == b"\x0a\x1b" + first + second


@pytest.mark.parametrize(
    ("kind", "encoded"),
    [("bytes_list", bytes_feature(())), ("float_list", float_feature(())), ("int64_list", int_feature(()))],
)
def test_an_empty_feature_keeps_its_type(kind, encoded):
    feature = tf.train.Example.FromString(encode_example({"a": encoded})).features.feature["a"]
    assert feature.WhichOneof("kind") == kind
    assert list(getattr(feature, kind).value) == []
