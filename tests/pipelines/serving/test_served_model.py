import base64
import json
import struct
import zlib

import pytest
import tensorflow as tf

from detloom.pipelines.serving import served_model
from detloom.pipelines.serving.predict_request import RequestError, TensorSpec
from detloom.pipelines.serving.served_model import ServedModel
from detloom.schemas.errors import InputError


def ask(served, **content):
    return served.predict(json.dumps(content).encode())[0]


def b64(data):
    return {"b64": base64.b64encode(data).decode()}


def make_example(**features):
    return tf.train.Example(
        features=tf.train.Features(
            feature={
                name.replace("_", "/"): tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
                for name, values in features.items()
            }
        )
    ).SerializeToString()


def test_version_is_the_number_of_the_folder(served):
    assert (served.name, served.version, served.label_map.names) == ("cells", 7, ("red", "green"))


def test_signatures_have_types_and_shapes(served):
    (name, spec), *rest = served.signatures["serving_default"].inputs.items()
    assert (name, spec.kind, spec.shape, rest) == ("input_tensor", "int", (None, None, None, 3), [])
    assert served.signatures["serving_encoded"].inputs == {"image_bytes": TensorSpec("text", object, (None,))}


def test_all_three_signatures_give_the_same_detections(served, image_pixels, encoded):
    answers = [
        ask(served, instances=[image_pixels.tolist()]),
        ask(served, signature_name="serving_encoded", instances=[b64(encoded)]),
        ask(served, signature_name="serving_examples", instances=[b64(make_example(image_encoded=[encoded]))]),
    ]
    (found,) = answers[0]["predictions"]
    assert answers == [answers[0]] * 3
    # Rows 10 to 20 of 40 and columns 40 to 60 of 80; rows 30 to 40 and columns 0 to 20.
    assert found["detection_boxes"] == [[0.25, 0.5, 0.5, 0.75], [0.75, 0.0, 1.0, 0.25]]
    assert (found["detection_classes"], found["num_detections"]) == ([1.0, 2.0], 2.0)


@pytest.mark.reliability("hostile input", "serve")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([b"GIF89a"], r"image_bytes\[0\]: .*GIF"),
        ([b"nothing"], r"image_bytes\[0\]: "),
    ],
)
def test_bytes_that_are_not_an_image_are_refused_before_the_model(served, content, message):
    with pytest.raises(RequestError, match=message):
        ask(served, signature_name="serving_encoded", instances=[b64(each) for each in content])


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (b"\xff\xff", r"examples\[0\]: .*tf\.Example"),
        (make_example(), r"examples\[0\]: got 0 values in image/encoded"),
        (make_example(image_encoded=[b"GIF89a"]), r"examples\[0\]: .*GIF"),
    ],
)
def test_images_in_examples_are_checked(served, example, message):
    with pytest.raises(RequestError, match=message):
        ask(served, signature_name="serving_examples", instances=[b64(example)])


def length_delimited(number, data):
    """Encode a protobuf field: tag, length as varint, bytes."""
    length, varint = len(data), b""
    while length > 127:
        varint, length = varint + bytes([length & 127 | 128]), length >> 7
    return bytes([number << 3 | 2]) + varint + bytes([length]) + data


@pytest.mark.reliability("hostile input", "serve")
def test_model_gets_the_checked_image_of_a_crafted_example(served, encoded):
    """Python's parser takes the last of three values of a oneof, TensorFlow's parser the first."""
    unseen, seen = (length_delimited(1, length_delimited(1, value)) for value in (b"never checked", encoded))
    feature = unseen + length_delimited(2, b"") + seen
    entry = length_delimited(1, b"image/encoded") + length_delimited(2, feature)
    crafted = length_delimited(1, length_delimited(1, entry))
    assert tf.train.Example.FromString(crafted).features.feature["image/encoded"].bytes_list.value[:] == [encoded]
    plain = ask(served, signature_name="serving_examples", instances=[b64(make_example(image_encoded=[encoded]))])
    assert ask(served, signature_name="serving_examples", instances=[b64(crafted)]) == plain


def damage_pixels(png):
    """Empty the compressed pixels of a PNG and correct the checksum, so that its headers are valid."""
    start, end = png.index(b"IDAT"), png.index(b"IEND") - 8
    chunk = b"IDAT" + bytes(end - start - 4)
    return png[:start] + chunk + struct.pack(">I", zlib.crc32(chunk)) + png[end + 4 :]


@pytest.mark.reliability("hostile input", "serve")
@pytest.mark.parametrize(
    ("signature", "where"), [("serving_encoded", r"image_bytes\[1\]"), ("serving_examples", r"examples\[1\]")]
)
def test_an_image_that_does_not_decode_is_named(served, encoded, signature, where):
    images = [encoded, damage_pixels(encoded)]
    if signature == "serving_examples":
        images = [make_example(image_encoded=[image]) for image in images]
    with pytest.raises(RequestError, match=f"^{where}: ") as caught:
        ask(served, signature_name=signature, instances=[b64(image) for image in images])
    assert caught.value.status == 400


def test_error_of_the_model_is_reported_with_its_reason(served, encoded, monkeypatch):
    monkeypatch.setattr(served_model, "check_decodes", lambda data: None)
    with pytest.raises(RequestError, match="PNG") as caught:
        ask(served, signature_name="serving_encoded", instances=[b64(damage_pixels(encoded))])
    assert "\n" not in caught.value.message


def test_model_with_other_text_inputs_is_not_served(tmp_path):
    class Lengths(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "lines")])
        def count(self, lines):
            return {"lengths": tf.strings.length(lines)}

    model = Lengths()
    tf.saved_model.save(model, str(tmp_path / "model"), {"serving_default": model.count})
    with pytest.raises(InputError, match=r"\['serving_default'\]"):
        ServedModel(tmp_path / "model", "m")


def test_model_without_label_map_is_served(tmp_path):
    class Double(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
        def double(self, x):
            return {"y": 2 * x}

    model = Double()
    tf.saved_model.save(model, str(tmp_path / "model"), {"serving_default": model.double})
    served = ServedModel(tmp_path / "model", "m")
    assert (served.version, served.label_map) == (1, None)
    assert ask(served, instances=[0.1, 2]) == {"predictions": [0.20000000298023224, 4.0]}
