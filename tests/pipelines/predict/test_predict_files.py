import io
import sqlite3
import threading
import time
from dataclasses import dataclass

import numpy as np
import pytest
from PIL import Image

from detloom.pipelines.predict import predict_files
from detloom.pipelines.predict.predict_files import predict_in_batches
from detloom.schemas.contracts import detections as names
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.trainer_module.inference.runtime import FailedCallError

CATS = LabelMap.from_names(["cat"])


@dataclass
class GivenImage:
    """A gray PNG of `width` x 10 pixels; fails with `error` when it is read."""

    width: int
    error: str = ""
    shown: str = "photo"

    def read(self):
        if self.error:
            raise InputError(self.error)
        file = io.BytesIO()
        Image.new("L", (self.width, 10)).save(file, "PNG")
        return file.getvalue(), 10 * self.width


class WidthDetector:
    """Returns one cat for each image, with the score 1 / width; refuses a batch with an image of 13 columns."""

    def __init__(self):
        self.batch_sizes = []

    def detect(self, images):
        self.batch_sizes.append(len(images))
        widths = [image.image_hw[1] for image in images]
        if 13 in widths:
            raise FailedCallError("13 is unlucky", is_refusal=True)
        return [
            {names.BOXES: np.zeros((1, 4)), names.SCORES: np.array([1 / width]), names.CLASSES: np.array([1])}
            for width in widths
        ]


def predict(runtime, images, batch_size=3):
    return [found for _, found in predict_in_batches(runtime, CATS, images, batch_size)]


def test_an_image_that_the_model_refuses_does_not_affect_the_others():
    first, refused, last = predict(WidthDetector(), [GivenImage(10), GivenImage(13), GivenImage(20)])
    assert str(refused) == "photo: the model cannot read the image (13 is unlucky)."
    assert (first.scores.tolist(), last.scores.tolist()) == ([0.1], [0.05])
    assert last.class_names == ("cat",)


def test_an_image_that_cannot_be_read_keeps_its_place():
    found = predict(WidthDetector(), [GivenImage(10), GivenImage(1, error="gone"), GivenImage(20)])
    assert [str(each) if isinstance(each, InputError) else each.scores[0] for each in found] == [0.1, "gone", 0.05]


def test_the_next_batch_is_decoded_while_the_model_runs_and_no_further_one():
    read = []

    class CountedImage(GivenImage):
        def read(self):
            read.append(self)
            return super().read()

    class WaitingDetector(WidthDetector):
        def detect(self, images):
            deadline = time.monotonic() + 20
            while len(read) < 2 * 3 and time.monotonic() < deadline:
                time.sleep(0.01)
            return super().detect(images)

    found = predict_in_batches(WaitingDetector(), CATS, (CountedImage(10 + number) for number in range(20, 32)), 3)
    assert next(found)[1].scores.tolist() == [pytest.approx(1 / 30)]
    assert len(read) == 6
    assert [each.scores[0] for _, each in found] == [pytest.approx(1 / width) for width in range(31, 42)]


def test_a_batch_has_fewer_images_if_they_are_large(monkeypatch):
    monkeypatch.setattr(predict_files, "MAX_PIXELS", 500)
    model = WidthDetector()
    # 100, 200 and 400 pixels; then 50
    predict(model, [GivenImage(10), GivenImage(20), GivenImage(40), GivenImage(5)], batch_size=4)
    assert model.batch_sizes == [2, 2]


def test_a_batch_of_large_images_does_not_wait_for_all_others(monkeypatch):
    read = []

    class CountedImage(GivenImage):
        def read(self):
            read.append(self)
            return super().read()

    monkeypatch.setattr(predict_files, "MAX_PIXELS", 500)
    monkeypatch.setattr(predict_files, "_MAX_READ_AT_ONCE", 2)
    found = predict_in_batches(WidthDetector(), CATS, (CountedImage(40 + number) for number in range(20)), 20)
    assert next(found)[1].scores.tolist() == [1 / 40]
    found.close()
    assert len(read) <= 4


def test_the_images_are_taken_in_the_thread_of_the_caller():
    rows = sqlite3.connect(":memory:").execute("VALUES (10), (20), (30)")  # another thread would be an error
    found = predict_in_batches(WidthDetector(), CATS, (GivenImage(width) for (width,) in rows), 1)
    assert [each.scores[0] for _, each in found] == [1 / 10, 1 / 20, 1 / 30]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("where", ["images", "read", "detect"])
def test_an_exception_leaves_no_thread(where, error, monkeypatch):
    def fail(*args):
        raise error

    def images():
        yield from [GivenImage(10), GivenImage(20)]
        if where == "images":
            fail()

    if where != "images":
        monkeypatch.setattr({"read": GivenImage, "detect": WidthDetector}[where], where, fail)
    before = threading.active_count()
    with pytest.raises(error):
        predict(WidthDetector(), images(), batch_size=1)
    assert threading.active_count() == before


@pytest.mark.parametrize("score", [np.nan, np.inf])
def test_detections_that_are_not_finite_are_an_error_of_the_image(score):
    class BrokenDetector(WidthDetector):
        def detect(self, images):
            return [{**rows, names.SCORES: np.array([score])} for rows in super().detect(images)]

    (error,) = predict(BrokenDetector(), [GivenImage(10)])
    assert "photo: the model returned detections that contain NaN" in str(error)
