"""Build Keras layers from `conv_hyperparams`.

As in the Object Detection API, only the depthwise kernel of a separable convolution gets the configured initializer and
penalty, unless a setting adds the pointwise kernel. All other kernels start with the Keras default (Glorot).
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from detloom.schemas.model.network import (
    ConvHyperparams,
    FeatureExtractor,
    Initializer,
    L1Regularizer,
    L2Regularizer,
    RandomNormalInitializer,
    Regularizer,
    TruncatedNormalInitializer,
    VarianceScalingInitializer,
)
from detloom.trainer_module.layers.fused_batch_norm import FusedBatchNorm
from detloom.trainer_module.layers.swish import swish

Levels: TypeAlias = dict[int, keras.KerasTensor]
"""Feature maps by the level of the pyramid; the stride of level n is 2**n."""


def build_initializer(config: Initializer) -> keras.initializers.Initializer:
    """Return a new initializer. Each kernel needs its own: an initializer returns the same values every time."""
    match config:
        case TruncatedNormalInitializer():
            return keras.initializers.TruncatedNormal(config.mean, config.stddev)
        case RandomNormalInitializer():
            return keras.initializers.RandomNormal(config.mean, config.stddev)
        case VarianceScalingInitializer():
            distribution = "uniform" if config.uniform else "truncated_normal"
            return keras.initializers.VarianceScaling(config.factor, config.mode.lower(), distribution)
    raise AssertionError(f"no such initializer: {config}")


class FusedL2(keras.regularizers.L2):
    """`keras.regularizers.L2` as one operation with one gradient operation; Keras stores a tensor of squares."""

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return 2 * self.l2 * tf.nn.l2_loss(x)


def build_regularizer(config: Regularizer) -> keras.regularizers.Regularizer | None:
    match config:
        case L1Regularizer(weight=0.0) | L2Regularizer(weight=0.0):
            return None
        case L1Regularizer(weight=weight):
            return keras.regularizers.L1(weight)
        case L2Regularizer(weight=weight):
            return FusedL2(weight / 2)
    raise AssertionError(f"no such regularizer: {config}")


@dataclass(frozen=True)
class ConvLayers:
    """Builder for the layers of one group of convolutions; `freeze_batchnorm` as in `Ssd`."""

    hyperparams: ConvHyperparams
    freeze_batchnorm: bool

    def kernel(self, prefix: str = "kernel") -> dict[str, Any]:
        """Return the Keras arguments of one kernel, named `<prefix>_...`."""
        return {
            f"{prefix}_initializer": build_initializer(self.hyperparams.initializer),
            f"{prefix}_regularizer": build_regularizer(self.hyperparams.regularizer),
        }

    def backbone_conv(
        self,
        num_channels: int,
        name: str,
        *,
        kernel_size: int | tuple[int, int] = 1,
        strides: int = 1,
        padding: str = "same",
        **bias: Any,
    ) -> keras.Layer:
        """Build a convolution without bias, independent of the settings; the Keras arguments in `bias` can add one."""
        settings = {"use_bias": False, **bias, **self.kernel()}
        return keras.layers.Conv2D(num_channels, kernel_size, strides, padding, name=name, **settings)

    def conv(
        self,
        num_channels: int,
        kernel_size: int,
        name: str,
        *,
        use_depthwise: bool = False,
        kernels: tuple[str, ...] = ("depthwise",),
        **settings: Any,
    ) -> keras.Layer:
        """Build a convolution, or with `use_depthwise` a separable one, with a bias if it needs one.

        Args:
            kernels: those of a separable convolution that get the configured initializer and penalty.
            settings: go to Keras.
        """
        settings = {"use_bias": self.use_bias, "padding": "same", **settings}
        if not use_depthwise:
            return keras.layers.Conv2D(num_channels, kernel_size, name=name, **self.kernel(), **settings)
        for prefix in kernels:
            settings |= self.kernel(prefix)
        return keras.layers.SeparableConv2D(num_channels, kernel_size, name=name, **settings)

    @property
    def use_bias(self) -> bool:
        """True if a convolution needs a bias; batch norm after it usually adds an offset already."""
        batch_norm = self.hyperparams.batch_norm
        return self.hyperparams.force_use_bias or batch_norm is None or not batch_norm.center

    def batch_norm(self, name: str) -> keras.Layer | None:
        """Build a batch norm if it is configured."""
        config = self.hyperparams.batch_norm
        if config is None:
            return None
        return FusedBatchNorm(
            momentum=config.decay,
            epsilon=config.epsilon,
            center=config.center,
            scale=config.scale,
            synchronized=config.synchronized,
            use_moving_statistics=self.freeze_batchnorm,
            name=name,
        )

    def normalize(self, features: keras.KerasTensor, name: str) -> keras.KerasTensor:
        """Apply batch norm if it is configured."""
        layer = self.batch_norm(name)
        return features if layer is None else layer(features)

    def activate(self, features: keras.KerasTensor, name: str) -> keras.KerasTensor:
        match self.hyperparams.activation:
            case "NONE":
                return features
            case "RELU":
                return keras.layers.ReLU(name=name)(features)
            case "RELU_6":
                return keras.layers.ReLU(6.0, name=name)(features)
            case "SWISH":
                return keras.layers.Activation(swish, name=name)(features)
        raise AssertionError(f"no such activation: {self.hyperparams.activation}")

    def finish(self, features: keras.KerasTensor, name: str) -> keras.KerasTensor:
        """Apply batch norm and activation."""
        return self.activate(self.normalize(features, f"{name}_bn"), f"{name}_activation")


def scaled_depth(config: FeatureExtractor, depth: int) -> int:
    """Return the number of channels of a neck layer after `depth_multiplier` and `min_depth`."""
    return max(int(depth * config.depth_multiplier), config.min_depth)


def pad_before_stride(
    config: FeatureExtractor, features: keras.KerasTensor, name: str
) -> tuple[keras.KerasTensor, str]:
    """Return the input of a 3x3 convolution of stride 2, and the padding argument of that convolution."""
    if config.use_explicit_padding:
        return keras.layers.ZeroPadding2D(1, name=name)(features), "valid"
    return features, "same"


def pad_to_multiple(image: keras.KerasTensor, multiple: int) -> keras.KerasTensor:
    """Pad with zeros below and to the right to a multiple of `multiple`; boxes are relative to the unpadded image."""
    rows, columns = (-side % multiple for side in image.shape[1:3])
    if rows == 0 and columns == 0:
        return image
    return keras.layers.ZeroPadding2D(((0, rows), (0, columns)), name="image_pad")(image)


def join_levels(levels: list[keras.KerasTensor], depth: int) -> keras.KerasTensor:
    """Concatenate the outputs of heads for each level, [B, H, W, anchors * depth], to float32 [B, A, depth]."""
    flat = [keras.layers.Reshape((-1, depth))(level) for level in levels]
    joined = keras.layers.Concatenate(axis=1)(flat) if len(flat) > 1 else flat[0]
    return keras.layers.Activation("linear", dtype=tf.float32)(joined)


def round_channels(num_channels: float) -> int:
    """Round to the nearest multiple of 8: at least 8, and at most 10 % below (MobileNetV2 and EfficientNet)."""
    rounded = max(8, int(num_channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * num_channels else rounded
