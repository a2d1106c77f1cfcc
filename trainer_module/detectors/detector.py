"""The protocol of detectors: the only interfaces that training, evaluation and export use.

A `Family` is what is known about a detector from its configuration alone; a `Detector` has a network. Importing this
module does not import TensorFlow, so that checking a configuration is cheap. Methods of families that need TensorFlow
import it themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np

from detloom.schemas.contracts import ground_truth
from detloom.schemas.contracts.arrays import Array, BoolArray, Float32Array
from detloom.schemas.contracts.ground_truth import IMAGE, TRUE_HW
from detloom.schemas.contracts.label_map import LabelMap
from detloom.schemas.errors import InputError
from detloom.schemas.model.config import Model
from detloom.schemas.model.network import KeepAspectRatioResizer

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from detloom.trainer_module.detectors.preprocess import Preprocessing

ConfigT = TypeVar("ConfigT", bound=Model)
Tensors = dict[str, "tf.Tensor"]


class Finding(NamedTuple):
    """Result of checking one setting.

    Attributes:
        is_supported: whether this version can train the setting.
        path: key path of the setting, such as `model.image_resizer.height`.
        got: its value.
        supported: the supported values, for the message.
    """

    is_supported: bool
    path: str
    got: object
    supported: str


def check_padding(resizer: KeepAspectRatioResizer) -> Finding:
    """Check that the resizer pads all images to one size."""
    path, is_padded = "model.image_resizer.pad_to_max_dimension", resizer.pad_to_max_dimension
    return Finding(is_padded, path, is_padded, "true: images of one size")


class AutomlSource(NamedTuple):
    """Source of one variable in a checkpoint of google/automl.

    Attributes:
        names: variables in the checkpoint; several if our variable combines scalars.
        transform: converts their values, in this order, to our value.
    """

    names: tuple[str, ...]
    transform: Callable[..., Array]


class Keypoints(NamedTuple):
    """The keypoints that a detector predicts.

    Attributes:
        class_name: the class whose objects have these points; all other classes have none.
        names: of the points, in the order of the outputs and of the ground truth.
        sigmas: standard deviation of each point's label over the square root of the object's area, for the object
            keypoint similarity (https://cocodataset.org/#keypoints-eval).
    """

    class_name: str
    names: tuple[str, ...]
    sigmas: tuple[float, ...]


@dataclass(frozen=True)
class Family(ABC, Generic[ConfigT]):
    """A detector family with one configuration. Each family extends this class in a folder of its own."""

    config: ConfigT

    # --- without TensorFlow -------------------------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        """Return facts for the model card."""
        extractor = self.config.feature_extractor
        neck = getattr(extractor, "neck", None)
        return {
            "architecture": type(self.config).__name__,
            "backbone": extractor.backbone,
            "neck": None if neck is None else type(neck).__name__,
            "max_detections": self.config.max_detections,
            "depth_multiplier": getattr(extractor, "depth_multiplier", 1.0),
        }

    def check_settings(self) -> Iterator[Finding]:
        """Yield a finding for each setting of the configuration that this version may not support."""
        return iter(())

    @property
    def ground_truth_columns(self) -> tuple[str, ...]:
        """Columns of `schemas/contracts/ground_truth.py` that training needs."""
        return ground_truth.TRAINING_COLUMNS

    @property
    def keypoints(self) -> Keypoints | None:
        """The keypoints that the detector predicts, if any."""
        return None

    def num_class_channels(self, num_classes: int) -> int:
        """Return the number of channels of each class output of the network."""
        return num_classes

    # --- with TensorFlow ----------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def preprocessing(self) -> Preprocessing:
        """The conversion of images to the input of the network."""

    @abstractmethod
    def build(self, label_map: LabelMap) -> Detector[ConfigT]:
        """Build the detector with random weights."""

    # --- checkpoints of other systems ---------------------------------------------------------------------------------

    def odapi_layer_keys(self, network: keras.Model) -> dict[str, str]:
        """Return the key of each layer with weights in checkpoints of the Object Detection API, by our layer name.

        {} if these checkpoints are not supported.
        """
        return {}

    def odapi_classification_keys(self, network: keras.Model) -> dict[str, str]:
        """Return the same for a backbone trained on classification, whose layers may be numbered in another way."""
        return self.odapi_layer_keys(network)

    def automl_sources(self, network: keras.Model) -> dict[str, AutomlSource]:
        """Return the source of each weight in checkpoints of google/automl, by "layer/variable".

        {} if these checkpoints are not supported.

        Raises:
            InputError: if a setting has no equivalent in google/automl.
        """
        return {}

    # --- TensorFlow Lite ----------------------------------------------------------------------------------------------

    @property
    def has_raw_outputs(self) -> bool:
        """True if a TensorFlow Lite or ONNX model can leave non-maximum suppression to its caller."""
        return False

    def tflite_warnings(self) -> tuple[str, ...]:
        """Return differences between a TensorFlow Lite model with suppression and the SavedModel."""
        return ()

    def select_raw(
        self,
        outputs: Mapping[str, Array],
        class_ids: tuple[int, ...],
        image_share_hw: Float32Array,
    ) -> dict[str, Array]:
        """Return the detections in the raw outputs of a TensorFlow Lite model, suppressed as in the SavedModel.

        Args:
            class_ids: label-map id of each class index.
            image_share_hw: rows and columns of the input that are image, over those of the input.

        Returns:
            Detections of one image without padding; boxes are relative to the input.
        """
        raise NotImplementedError(f"{type(self).__name__} has no raw outputs")

    def is_in_image(self, boxes_yxyx: Float32Array, image_share_hw: Float32Array) -> BoolArray:
        """Return which boxes [N, 4], relative to the input, the SavedModel would not drop as padding, bool [N]."""
        clipped = np.clip(boxes_yxyx, 0, np.tile(image_share_hw, 2))
        has_area: BoolArray = (clipped[:, 2:] > clipped[:, :2]).all(axis=1)
        return has_area


@dataclass(frozen=True, eq=False)
class Detector(ABC, Generic[ConfigT]):
    """A network and the meaning of its outputs. Each family extends this class in its folder.

    The methods are functions of tensors and can be called inside a `tf.function`. `batch` is a batch of ground truth
    with the keys of `schemas/contracts/ground_truth.py`.

    Attributes:
        suppresses_on_host: whether `detections` uses operations that exist on CPUs only, which XLA cannot compile.
    """

    family: Family[ConfigT]
    label_map: LabelMap
    network: keras.Model
    suppresses_on_host: bool = field(default=False, kw_only=True)

    @property
    def config(self) -> ConfigT:
        """The configuration that the network was built from."""
        return self.family.config

    @property
    def preprocessing(self) -> Preprocessing:
        """The conversion of images to the input of the network."""
        return self.family.preprocessing

    @abstractmethod
    def describe(self) -> str:
        """Return the size of the output for the log, such as "12804 anchors"."""

    # --- training -----------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def loss_names(self) -> tuple[str, ...]:
        """Keys of `losses`; each ends with `_loss`."""

    def forward(self, batch: Tensors, *, training: bool) -> Tensors:
        """Run the network on the images of a batch.

        In training the batch has ground truth, which a detector with two stages needs to sample its proposals.
        """
        outputs: Tensors = self.network(batch[IMAGE], training=training)
        return outputs

    @abstractmethod
    def losses(self, outputs: Tensors, batch: Tensors, num_matches: tf.Tensor | None = None) -> Tensors:
        """Return the weighted losses, float32 scalars; training minimizes their sum.

        Args:
            outputs: of `forward`.
            num_matches: of `count_matches`, if the batch is a part of a larger one (on a replica, or with gradient
                accumulation): then the losses of the parts add up to those of the whole. None: of this batch.
        """

    def targets(self, batch: Tensors) -> Tensors:
        """Return what `losses` and `count_matches` would both compute from a batch, [B, ...]; they find it there."""
        return {}

    @abstractmethod
    def count_matches(self, batch: Tensors) -> tf.Tensor:
        """Return the normalizer of the losses (used where it is at least 1), float32; those of parts add up.

        With several, return them in one vector; the first one counts the matches of boxes.
        """

    def activation_bytes_per_image(self) -> int | None:
        """Estimate the bytes of one image's activations in a training step, for the memory check; None if unknown."""
        from detloom.trainer_module.detectors.activation_memory import activation_bytes

        return activation_bytes(self.network)

    # --- inference ----------------------------------------------------------------------------------------------------

    def with_networks(self, convert: Callable[[keras.Model], keras.Model]) -> Detector[ConfigT]:
        """Return a copy in which `network`, and each attribute that is a part of it, is converted."""
        import keras

        values = {field.name: getattr(self, field.name) for field in fields(self)}
        models = {name: value for name, value in values.items() if isinstance(value, keras.Model)}
        return replace(self, **{name: convert(model) for name, model in models.items()})

    @abstractmethod
    def detections(self, outputs: Tensors, true_hw_B2: tf.Tensor | None = None) -> Tensors:
        """Decode outputs of `forward` to detections with the keys of `schemas/contracts/detections.py`.

        Args:
            true_hw_B2: rows and columns of each input that are image; boxes are relative to this part. None: all.
        """

    def detect(self, images_BHW3: tf.Tensor, true_hw_B2: tf.Tensor | None = None) -> Tensors:
        """Detect objects in prepared images (`Preprocessing.prepare`); see `detections`."""
        batch = {IMAGE: images_BHW3} if true_hw_B2 is None else {IMAGE: images_BHW3, TRUE_HW: true_hw_B2}
        return self.detections(self.forward(batch, training=False), true_hw_B2)

    def fixed_size_outputs(self, outputs: Tensors, *, raw: bool, max_detections: int) -> Tensors:
        """Decode outputs of `forward` for a TensorFlow Lite or ONNX model; boxes are relative to the whole input.

        Args:
            raw: leave non-maximum suppression to the caller, if the family has raw outputs.
            max_detections: number of rows unless `raw`.
        """
        raise InputError(f"export: {type(self).__name__} has no TensorFlow Lite form, and no raw ONNX outputs.")
