"""Properties of every augmentation."""

import numpy as np
import pytest
import tensorflow as tf

from detloom.schemas.model.augmentations import (
    RandomAbsolutePadImage,
    RandomAdjustHue,
    RandomDownscaleToTargetPixels,
    RandomHorizontalFlip,
    RandomImageScale,
    RandomJitterBoxes,
    RandomPadImage,
    RandomRotation90,
    RandomSelfConcatImage,
    RandomVerticalFlip,
)
from detloom.schemas.model.color_augmentations import (
    AdjustGamma,
    GridMask,
    RandomBlackPatches,
    RandomCutout,
    RandomDistortColor,
    RandomJpegQuality,
    RandomPatchGaussian,
    RandomPixelValueScale,
    RandomRgbToGray,
)
from detloom.schemas.model.crop_augmentations import (
    RandomCropImage,
    RandomCropPadImage,
    RandomCropToAspectRatio,
    RandomScaleCropAndPadToSquare,
    RandomSquareCropByScale,
    SsdRandomCrop,
    SsdRandomCropFixedAspectRatio,
    SsdRandomCropPad,
    SsdRandomCropPadFixedAspectRatio,
)
from detloom.trainer_module.data.augmentations.apply import apply_augmentation, runs_before_resize, split_at_resize

SEED = tf.constant([1, 2], tf.int32)
BOXES = {
    "no_box": [],
    "one_box": [(0.25, 0.5, 0.75, 1.0)],
    "crowd": [(0.1 * i, 0.05 * i, 0.1 * i + 0.1, 0.05 * i + 0.2) for i in range(9)],
}
SHAPES = {
    "image": [None, None, 3],
    "boxes_yxyx_rel": [None, 4],
    "masks_GHW": [None, None, None],
    "keypoints_yx_rel_GP2": [None, 3, 2],
}
ALL = [
    RandomHorizontalFlip(probability=1.0),
    RandomHorizontalFlip(keypoint_flip_permutation=(1, 0, 2)),
    RandomVerticalFlip(),
    RandomRotation90(),
    RandomCropImage(min_object_covered=0.1, min_area=0.3, max_area=0.6),
    RandomCropImage(min_object_covered=0.0, min_area=0.0, overlap_thresh=0.0, random_coef=0.3),
    RandomCropPadImage(min_object_covered=0.1),
    RandomCropToAspectRatio(),
    SsdRandomCrop(),
    SsdRandomCropFixedAspectRatio(aspect_ratio=1.2),
    SsdRandomCropPad(),
    SsdRandomCropPadFixedAspectRatio(),
    RandomScaleCropAndPadToSquare(output_size=48),
    RandomSquareCropByScale(max_border=16),
    RandomPadImage(),
    RandomAbsolutePadImage(max_height_padding=30, max_width_padding=20),
    RandomImageScale(),
    RandomDownscaleToTargetPixels(min_target_pixels=600, max_target_pixels=3000),
    RandomJitterBoxes(),
    RandomSelfConcatImage(concat_vertical_probability=0.5, concat_horizontal_probability=0.5),
]


PIXELS_ONLY = [
    RandomDistortColor(),
    RandomRgbToGray(probability=0.5),
    RandomPixelValueScale(),
    AdjustGamma(gamma=1.5),
    RandomJpegQuality(random_coef=0.3),
    RandomPatchGaussian(random_coef=0.3, max_patch_size=80),
    RandomBlackPatches(),
    RandomCutout(),
    GridMask(),
]


def each_augmentation(*, but: object = None):
    which = [each for each in ALL if each != but]
    return pytest.mark.parametrize("augmentation", which, ids=lambda each: type(each).__name__)


every_augmentation = pytest.mark.parametrize(
    "augmentation", [*ALL, *PIXELS_ONLY], ids=lambda value: type(value).__name__
)


@every_augmentation
def test_results_are_inside_the_image(augmentation, make_sample):
    for boxes in BOXES.values():
        sample = make_sample(boxes, extras=True)
        result = apply_augmentation(augmentation, sample, SEED)
        check(result)
        assert set(result) == set(sample)
        for name in set(sample) - {"image"} if augmentation in PIXELS_ONLY else ():
            np.testing.assert_array_equal(result[name], sample[name])


@pytest.mark.slow  # a graph for each
@every_augmentation
def test_results_are_equal_in_tf_data(augmentation, make_sample):
    samples = [make_sample(boxes, extras=True) for boxes in BOXES.values()]
    signature = {name: tf.TensorSpec(SHAPES.get(name, [None]), value.dtype) for name, value in samples[0].items()}
    dataset = tf.data.Dataset.from_generator(lambda: iter(samples), output_signature=signature)
    changed = list(dataset.map(lambda sample: apply_augmentation(augmentation, sample, SEED)))
    for sample, result in zip(samples, changed, strict=True):
        eager = apply_augmentation(augmentation, sample, SEED)
        for name in eager:
            atol = 1e-3 if name == "image" else 1e-6
            np.testing.assert_allclose(eager[name], result[name], atol=atol, err_msg=name)


def check(sample):
    image, boxes = sample["image"].numpy(), sample["boxes_yxyx_rel"].numpy()
    assert {len(value) for name, value in sample.items() if name != "image"} == {len(boxes)}
    assert ((boxes >= 0) & (boxes <= 1)).all()
    assert (boxes[:, 2:] > boxes[:, :2]).all()
    assert image.min() >= 0
    assert image.max() <= 255
    assert sample["masks_GHW"].shape[1:] == image.shape[:2]
    points = sample["keypoints_yx_rel_GP2"].numpy()
    assert ((points >= 0) & (points <= 1) | np.isnan(points)).all()


@each_augmentation(but=RandomJitterBoxes())  # which moves the boxes alone
def test_masks_and_keypoints_stay_on_their_boxes(augmentation, make_sample):
    sample = make_sample([(0.1, 0.1, 0.6, 0.4), (0.3, 0.5, 0.9, 0.9)], hw=(60, 80), extras=True)
    for i in range(3):
        changed = apply_augmentation(augmentation, sample, tf.constant([i, 7]))
        height, width = changed["image"].shape[:2]
        for mask, box, points in zip(
            changed["masks_GHW"].numpy(),
            changed["boxes_yxyx_rel"].numpy(),
            changed["keypoints_yx_rel_GP2"].numpy(),
            strict=True,
        ):
            ymin, xmin, ymax, xmax = box * [height, width, height, width]
            rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
            if min(ymax - ymin, xmax - xmin) > 2:  # of a sliver no pixel may be left
                edges = [rows[0], columns[0], rows[-1] + 1, columns[-1] + 1]
                np.testing.assert_allclose(edges, [ymin, xmin, ymax, xmax], atol=1.6)
            labelled = points[~np.isnan(points).any(axis=1)]
            assert (labelled >= box[:2] - 1e-5).all()
            assert (labelled <= box[2:] + 1e-5).all()


@each_augmentation(but=RandomHorizontalFlip(probability=1.0))  # which draws nothing
def test_another_seed_gives_another_result_of_the_same_kind(augmentation, make_sample):
    sample = make_sample(BOXES["crowd"], hw=(40, 61))
    results = {
        (changed["image"].numpy().tobytes(), changed["boxes_yxyx_rel"].numpy().tobytes())
        for changed in (apply_augmentation(augmentation, sample, tf.constant([i, 3])) for i in range(8))
    }
    assert len(results) > 1


@each_augmentation()
def test_only_what_keeps_the_sides_runs_after_the_resize(augmentation):
    flips = RandomHorizontalFlip | RandomVerticalFlip
    assert runs_before_resize(augmentation) != isinstance(augmentation, flips)


def test_a_flip_runs_before_the_resize_only_before_one_sided_padding():
    flip, hue, crop = RandomHorizontalFlip(), RandomAdjustHue(), RandomCropImage()
    fill, pad = RandomScaleCropAndPadToSquare(), RandomPadImage()
    expected = {
        (flip, hue, crop): ([crop], [flip, hue]),
        (flip, hue, crop, fill): ([crop, flip, fill], [hue]),
        (fill, flip): ([fill], [flip]),
        (flip, pad): ([pad], [flip]),
    }
    for listed, sides in expected.items():
        found = split_at_resize([(each, SEED) for each in listed])
        assert tuple([each for each, _ in side] for side in found) == sides


def test_a_flip_happens_about_as_often_as_it_should(make_sample):
    sample = make_sample([(0.0, 0.0, 0.5, 0.25)])
    flip = RandomHorizontalFlip(probability=0.3)
    changed = [apply_augmentation(flip, sample, tf.constant([i, 0])) for i in range(100)]
    lefts = [float(each["boxes_yxyx_rel"][0, 1]) for each in changed]
    assert 18 <= lefts.count(0.75) <= 43
