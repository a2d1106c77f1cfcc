"""Compute reference values of one EfficientDet of google/automl; runs in the environment of build_odapi.sh.

    python automl_reference.py AUTOML/efficientdet MODEL OUTPUT.npz [--side 96] [--num-classes 3]

AUTOML is a checkout of github.com/google/automl (the tests have values of commit 6a54c87). Builds the TensorFlow 1
graph of MODEL, such as efficientdet-lite3, with weights that depend only on their names (`automl_value` in
lively_weights.py), and writes the preprocessed image, anchors, and outputs by level, rounded to steps of `STEP`.
"""

import argparse
import sys
import types

import numpy as np
import tensorflow.compat.v1 as tf
from lively_weights import automl_value, lively_images

STEP = 2.0**-12  # of rounded outputs, as in odapi_reference.py
IMAGE_HW = (80, 120)
ROWS = 7  # every 7th row of the preprocessed image is stored


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("automl")
    parser.add_argument("model")
    parser.add_argument("output")
    parser.add_argument("--side", type=int, default=96)
    parser.add_argument("--num-classes", type=int, default=3)
    given = parser.parse_args()
    sys.path.insert(0, given.automl)
    sys.modules.setdefault("tensorflow_model_optimization", types.ModuleType("tensorflow_model_optimization"))
    import dataloader
    import efficientdet_arch
    import hparams_config
    from tf2 import anchors

    tf.disable_eager_execution()
    config = hparams_config.get_efficientdet_config(given.model)
    config.override({"is_training_bn": False, "num_classes": given.num_classes, "image_size": given.side})
    (image,) = lively_images(1, *IMAGE_HW)
    processor = dataloader.DetectionInputProcessor(tf.constant(image), given.side)
    processor.normalize_image(config.mean_rgb, config.stddev_rgb)
    processor.set_scale_factors_to_output_size()
    prepared = processor.resize_and_crop_image()
    classes, boxes = efficientdet_arch.efficientdet(prepared[None], config=config)
    sizes = (config.min_level, config.max_level, config.num_scales, config.aspect_ratios, config.anchor_scale)
    all_anchors = anchors.Anchors(*sizes, config.image_size).boxes
    variables = tf.global_variables()
    assign = [
        tf.assign(each, tf.constant(automl_value(each.op.name, tuple(each.shape.as_list())))) for each in variables
    ]
    with tf.Session() as session:
        session.run(assign)
        found = session.run({"image": prepared, "anchors": all_anchors, "class": classes, "box": boxes})
    arrays = {"image_rows": found["image"][::ROWS], "anchors_yxyx_px": found["anchors"]}
    for kind in ("class", "box"):
        for level, values in found[kind].items():
            arrays[f"{kind}_{level}"] = np.round(values / STEP).astype(np.int16)
    np.savez_compressed(given.output, side=given.side, num_classes=given.num_classes, **arrays)
    print(f"{given.output}: {len(variables)} variables, {sum(int(np.prod(each.shape)) for each in variables)} values")


if __name__ == "__main__":
    main()
