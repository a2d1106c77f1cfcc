import os
import signal
import threading

import numpy as np
import pytest
import tensorflow as tf
import tiny_detector

from detloom.schemas.contracts import detections as names
from detloom.schemas.errors import InputError
from detloom.trainer_module.data.records import ExampleFeatures
from detloom.trainer_module.inference import model_process
from detloom.trainer_module.inference.encoded_image import EncodedImage
from detloom.trainer_module.inference.tflite_runtime import TfliteRuntime

RED = (0.6, 0.5, 0.9, 0.9)


@pytest.mark.parametrize(("dtype", "image_hw"), [(tf.uint8, (60, 80)), (tf.float32, (120, 160))])
def test_it_equals_the_saved_model_and_refuses_an_invalid_image(dtype, image_hw, make_example, tmp_path):
    detector = TfliteRuntime(str(tiny_detector.write_tiny_tflite(tmp_path / "a.tflite", dtype=dtype)))
    with pytest.raises(InputError, match="the image: not a JPEG or PNG"):
        detector.detect([EncodedImage(b"")])
    examples = (make_example([RED], image_hw=image_hw, class_ids=[1]), make_example(image_hw=image_hw))
    one, none = detector.detect([EncodedImage(ExampleFeatures(each).image_bytes) for each in examples])
    np.testing.assert_allclose(one[names.BOXES], [RED], atol=0.02)  # a pixel of 60
    assert one[names.SCORES].tolist() == [pytest.approx(0.9)]
    assert one[names.CLASSES].tolist() == [1]
    assert none[names.BOXES].shape == (0, 4)


def test_other_files_are_refused_by_name(tmp_path):
    (tmp_path / "b.tflite").write_bytes(b"TFL3 or not")
    for name in ("b.tflite", "gone.tflite"):
        with pytest.raises(InputError, match=rf"{name}: not a TFLite model"):
            TfliteRuntime(str(tmp_path / name))


@pytest.mark.reliability("hostile input", "evaluate")
def test_a_model_that_blocks_its_process_is_an_error_and_the_next_call_starts_it_again(make_example, tmp_path):
    image = EncodedImage(ExampleFeatures(make_example([RED], image_hw=(60, 80), class_ids=[1])).image_bytes)
    detector = TfliteRuntime(str(tiny_detector.write_tiny_tflite(tmp_path / "a.tflite")))
    process = model_process._process_of(os.getpid())._process
    process.send_signal(signal.SIGSTOP)
    process.send_signal(signal.SIGALRM)  # as after the time limit; arrives when the process continues
    threading.Timer(1, process.send_signal, [signal.SIGCONT]).start()
    with pytest.raises(InputError, match=r"a\.tflite: cannot be run \(.*within 180 s"):
        detector.detect([image])
    assert len(detector.detect([image])[0][names.BOXES]) == 1


def test_a_model_with_other_outputs_is_refused(tmp_path):
    path = tiny_detector.write_tiny_tflite(tmp_path / "c.tflite", output="boxes")
    with pytest.raises(InputError, match=r"c\.tflite: got the signatures .*needed: 'serving_default'"):
        TfliteRuntime(str(path))
