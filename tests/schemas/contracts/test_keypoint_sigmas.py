import numpy as np
from pycocotools.cocoeval import Params

from detloom.schemas.contracts.keypoint_sigmas import COCO_SIGMAS, sigmas_of


def test_sigmas_of_persons_equal_those_of_pycocotools():
    np.testing.assert_array_equal(list(COCO_SIGMAS.values()), Params("keypoints").kpt_oks_sigmas)


def test_given_sigmas_replace_those_of_coco_and_the_default():
    assert sigmas_of(("tail", "nose"), {}) == (0.05, 0.26 / 10)
    assert sigmas_of(("tail", "nose"), {"nose": 0.1, "tail": 0.2}) == (0.2, 0.1)
