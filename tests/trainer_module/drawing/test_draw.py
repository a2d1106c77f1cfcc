import io

import numpy as np
import pytest
import simplejpeg
import tensorflow as tf
from PIL import Image

from detloom.schemas.errors import InputError
from detloom.trainer_module.detectors.preprocess import decode_image
from detloom.trainer_module.drawing.draw import (
    blend_masks,
    color_of_class,
    decode_image_rgb,
    draw_detections,
    draw_keypoints,
)


def grey(height, width):
    return np.full((height, width, 3), 127, np.uint8)


def changed_pixels(image_rgb, drawn):
    return (np.asarray(drawn) != image_rgb).any(axis=-1)


def test_box_edges_have_the_color_of_the_class():
    image = grey(100, 200)
    # Rows 0.5 * 99 = 49.5 -> 50 and 0.8 * 99 = 79.2 -> 79; columns 0.25 * 199 = 49.75 -> 50 and 0.75 * 199 -> 149.
    drawn = np.asarray(draw_detections(image, np.array([[0.5, 0.25, 0.8, 0.75]]), [2], ["cat"]))
    assert tuple(drawn[79, 60]) == tuple(drawn[60, 149]) == color_of_class(2)
    assert (drawn[60:70, 60:140] == 127).all()


def test_the_image_is_not_modified():
    image = grey(50, 50)
    draw_detections(image, np.array([[0, 0, 1, 1]]), [1], ["cat"], [0.5])
    assert (image == 127).all()


@pytest.mark.parametrize("image_hw", [(1, 1), (20, 300), (300, 20), (480, 640)])
@pytest.mark.parametrize(
    "box", [[0, 0, 1, 1], [0.99, 0.99, 1, 1], [0, 0.95, 0.02, 1], [-3, -2, 5, 9], [0.5, 0.5, 0.5, 0.5]]
)
def test_every_image_size_and_box_position_can_be_drawn(image_hw, box):
    image = grey(*image_hw)
    drawn = draw_detections(image, np.array([box]), [1], ["a rather long class name"], [0.987])
    assert drawn.size == image_hw[::-1]
    assert changed_pixels(image, drawn).any()


def test_a_label_at_the_right_edge_is_moved_inside():
    image = grey(200, 200)
    changed = changed_pixels(image, draw_detections(image, np.array([[0.5, 0.95, 0.6, 1.0]]), [1], ["platelets"]))
    # The box begins at column 189; "platelets" is some 40 px wide, so its plate begins left of column 170.
    assert changed[:99, :170].any()


@pytest.mark.parametrize(("name", "drawn"), [("new\nline", "new line"), ("é" * 4096, "é" * 23 + "…"), ("", "")])
def test_any_class_name_can_be_drawn(name, drawn):
    image, box = grey(20, 30), np.array([[0.1, 0.1, 0.9, 0.9]])
    found, expected = (np.asarray(draw_detections(image, box, [1], [each])) for each in (name, drawn))
    np.testing.assert_array_equal(found, expected)


def test_labels_stay_legible_on_large_images():
    image = grey(3000, 3000)
    changed = changed_pixels(image, draw_detections(image, np.array([[0.5, 0.5, 0.9, 0.9]]), [1], ["cat"]))
    above_the_box = changed[: round(0.5 * 2999) - 8]
    assert above_the_box.any(axis=1).sum() >= 20


@pytest.mark.parametrize("box", [[0.8, 0.1, 0.2, 0.9], [np.nan, 0, 1, 1]])
def test_an_inverted_or_infinite_box_is_not_drawn(box):
    image = grey(50, 50)
    assert not changed_pixels(image, draw_detections(image, np.array([box]), [1], ["cat"], [0.5])).any()


def test_a_cmyk_image_becomes_rgb():
    file = io.BytesIO()
    Image.fromarray(grey(4, 6)).convert("CMYK").save(file, "JPEG")
    decoded = decode_image_rgb(file.getvalue(), "a")
    assert (decoded.shape, decoded.dtype) == ((4, 6, 3), np.uint8)


@pytest.mark.parametrize("settings", [{}, {"subsampling": 0}, {"progressive": True}, {"quality": 30}])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_a_jpeg_has_the_pixels_that_the_model_decodes(mode, settings):
    small = Image.fromarray(np.random.default_rng(0).integers(0, 255, (9, 13, 3), np.uint8))
    file = io.BytesIO()
    small.resize((83, 61), Image.Resampling.BICUBIC).convert(mode).save(file, "JPEG", **settings)
    expected = decode_image(tf.constant(file.getvalue())).numpy()
    np.testing.assert_array_equal(decode_image_rgb(file.getvalue(), "a"), expected)


def encoded_noise():
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(file, "JPEG")
    return file.getvalue()


def test_a_jpeg_with_extraneous_bytes_has_the_pixels_that_the_model_decodes():
    content = encoded_noise()
    with_warning = content[:-2] + b"ab" + content[-2:]
    with pytest.raises(ValueError, match="extraneous bytes"):
        simplejpeg.decode_jpeg(with_warning)
    expected = decode_image(tf.constant(with_warning)).numpy()
    np.testing.assert_array_equal(decode_image_rgb(with_warning, "a"), expected)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"x\.jpg: not a JPEG or PNG image"),
        (b"GIF89a\x01\x00\x01\x00", r"x\.jpg: not a JPEG or PNG image"),
        (encoded_noise()[:600], r"x\.jpg: the image is broken"),
    ],
)
def test_other_files_are_refused_by_name(content, message):
    with pytest.raises(InputError, match=message):
        decode_image_rgb(content, "x.jpg")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_every_kind_of_png_is_decoded_as_the_model_decodes_it(mode):
    ramp = np.linspace(0, 65535 if mode == "I;16" else 255, 64 * 64)
    if mode == "I;16":
        image = Image.fromarray(ramp.reshape(64, 64).astype(np.uint16))
    else:
        image = Image.fromarray(ramp.reshape(64, 64).astype(np.uint8)).convert(mode)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    expected = decode_image(tf.constant(buffer.getvalue())).numpy()
    np.testing.assert_allclose(decode_image_rgb(buffer.getvalue(), "ramp").astype(int), expected.astype(int), atol=1)


# --- masks and keypoints ---

GREY = np.full((50, 100, 3), 100, np.uint8)


def test_a_mask_is_tinted_with_the_color_of_its_class():
    mask = np.zeros((1, 50, 100), np.uint8)
    mask[0, 10:20, 30:40] = 1
    blended = blend_masks(GREY, mask, [1])
    # Class 1 is (0, 114, 178): 100 + 0.45 * (color - 100) = 55, 106.3, 135.1
    assert blended[15, 35].tolist() == [55, 106, 135]
    assert (blended[np.asarray(mask[0]) == 0] == 100).all()


def test_where_masks_overlap_both_colors_are_seen():
    blended = blend_masks(GREY, np.ones((2, 50, 100), np.uint8), [1, 2])
    # 55, 106.3, 135.1 from class 1, then class 2 (230, 159, 0): + 0.45 * (230 - 55), (159 - 106.3), (0 - 135.1)
    assert blended[0, 0].tolist() == [134, 130, 74]


def test_no_mask_and_no_point_change_nothing():
    assert (blend_masks(GREY, np.zeros((0, 50, 100)), []) == 100).all()
    assert (draw_keypoints(GREY, np.zeros((0, 3, 2)), []) == 100).all()


def test_a_keypoint_is_drawn_as_a_dot():
    drawn = draw_keypoints(GREY, np.array([[[0.5, 0.25]]]), [2])
    changed = np.argwhere((drawn != 100).any(axis=-1))
    # Row 0.5 * 49 = 24.5 -> 24, column 0.25 * 99 = 24.75 -> 25; the radius is 2.
    assert (changed.min(axis=0).tolist(), changed.max(axis=0).tolist()) == ([22, 23], [26, 27])
    assert tuple(drawn[24, 25]) == color_of_class(2)


def test_points_without_a_label_or_outside_are_not_drawn():
    points = np.array([[[np.nan, np.nan], [-0.1, 0.5], [0.5, 1.2]]])
    assert (draw_keypoints(GREY, points, [1]) == 100).all()
