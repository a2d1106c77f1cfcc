"""AutoAugment for boxes (arXiv:1906.11172, appendix A) and RandAugment, with the steps of google/automl.

What differs: a box of which nothing is left in the picture is dropped; there, it stays as a sliver at the edge. Boxes
are not rounded to whole pixels on their way.
"""

from collections.abc import Callable

import tensorflow as tf

from detloom.schemas.policy_augmentation_config import AutoAugmentImage, RandAugment
from detloom.trainer_module.augmentations.policy_steps import Step, amount_of, apply_step
from detloom.trainer_module.augmentations.policy_tables import POLICIES, RAND_AUGMENT
from detloom.trainer_module.sample import Sample, replaced


def auto_augment(config: AutoAugmentImage, sample: Sample, seed: tf.Tensor) -> Sample:
    """The image keeps its type."""
    policy = POLICIES[config.policy_name]
    names = sorted({name for steps in policy for name, _, _ in steps})
    longest = max(len(steps) for steps in policy)
    nothing = (names[0], 0.0, 0.0)
    padded = [[*steps, *[nothing] * (longest - len(steps))] for steps in policy]
    kinds = tf.constant([[names.index(name) for name, _, _ in steps] for steps in padded])
    probabilities = tf.constant([[float(probability) for _, probability, _ in steps] for steps in padded])
    amounts = tf.constant([[float(amount_of(name, level)) for name, _, level in steps] for steps in padded])
    seeds = tf.unstack(tf.random.experimental.stateless_split(seed, longest + 1))
    chosen = tf.random.stateless_uniform([], seeds[0], maxval=len(policy), dtype=tf.int32)

    def steps(sample: Sample) -> Sample:
        for i in range(longest):
            step = Step(kinds[chosen, i], probabilities[chosen, i], amounts[chosen, i])
            sample = apply_step(names, step, sample, seeds[i + 1])
        return sample

    return _in_uint8(steps, sample)


def rand_augment(config: RandAugment, sample: Sample, seed: tf.Tensor) -> Sample:
    """The image keeps its type."""
    amounts = tf.constant([float(amount_of(name, config.magnitude)) for name in RAND_AUGMENT])

    def layers(sample: Sample) -> Sample:
        for layer in range(config.num_layers):
            its_seed = tf.random.experimental.stateless_fold_in(seed, layer)
            seeds = tf.unstack(tf.random.experimental.stateless_split(its_seed))
            kind = tf.random.stateless_uniform([], seeds[0], maxval=len(RAND_AUGMENT), dtype=tf.int32)
            sample = apply_step(RAND_AUGMENT, Step(kind, tf.constant(1.0), amounts[kind]), sample, seeds[1])
        return sample

    return _in_uint8(layers, sample)


def _in_uint8(change: Callable[[Sample], Sample], sample: Sample) -> Sample:
    image = sample["image"]
    changed = change(replaced(sample, image=tf.cast(image, tf.uint8)))
    return replaced(changed, image=tf.cast(changed["image"], image.dtype))
