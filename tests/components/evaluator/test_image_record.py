import pickle

import numpy as np
import pytest

from detloom.components.evaluator.image_record import ImageRecord, decode_record, encode_record
from detloom.schemas.errors import InputError

ROWS = {
    "detection_boxes": np.array([[0.1, 0.2, 0.3, 1 / 3]], np.float32),
    "detection_scores": np.array([0.5], np.float32),
    "detection_classes": np.array([2], np.int64),
}
RECORD = ImageRecord(
    source_id="caf\u00e9\n\ud800",
    image_hw=(3, 4),
    truth={"boxes_yxyx_rel": np.zeros((0, 4)), "class_ids": np.array([], np.int64), "is_crowd": np.array([], bool)},
    verified_class_ids=(1, 2),
    features={"camera": ("north",), "hour": (3, 0.1)},
    found={"candidate": ROWS, "float16/x": {name: rows[:0] for name, rows in ROWS.items()}},
    matches={"candidate": {"by_class/true_NA": np.array([[1023, 0, 7, 0]], np.uint16)}},
)


def test_a_record_survives_the_round_trip_to_the_bit():
    found = decode_record(encode_record(RECORD))
    for name in ("source_id", "image_hw", "verified_class_ids", "features", "problem"):
        assert getattr(found, name) == getattr(RECORD, name)
    groups = [(found.truth, RECORD.truth), *((found.found[name], RECORD.found[name]) for name in RECORD.found)]
    groups += [(found.matches[name], RECORD.matches[name]) for name in RECORD.matches]
    assert found.found.keys() == RECORD.found.keys()
    for ours, wanted in groups:
        assert ours.keys() == wanted.keys()
        for name, array in wanted.items():
            assert (ours[name].dtype, ours[name].shape) == (array.dtype, array.shape)
            assert ours[name].tobytes() == array.tobytes()
            ours[name].sort()  # writable


def test_a_problem_survives_the_round_trip():
    found = decode_record(encode_record(ImageRecord(source_id="a", problem="lacks a box", failures={"onnx": "why"})))
    assert (found.problem, found.failures) == ("lacks a box", {"onnx": "why"})


class Attack:
    def __reduce__(self):
        return (pytest.fail, ("code was run",))


ENCODED = encode_record(RECORD)


@pytest.mark.reliability("hostile input", "evaluate")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]\n",
        b"{}\n",
        b"[" * 100_000,
        ENCODED[:-1],
        ENCODED.replace(b"<f4", b"|O8"),
        ENCODED.replace(b"[1, 4]", b"[9, 9]"),
        ENCODED.replace(b"[1, 4]", b"[-1, 4]"),
        pickle.dumps(Attack()),
    ],
)
def test_other_bytes_are_refused_and_run_nothing(data):
    with pytest.raises(InputError):
        decode_record(data)
