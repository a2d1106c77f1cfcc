"""What every detector can do, and how one is built."""

from typing import Protocol

import keras
import tensorflow as tf

from detloom.schemas.center_net_config import CenterNet
from detloom.schemas.config import Model
from detloom.schemas.errors import InputError
from detloom.schemas.label_map import LabelMap
from detloom.schemas.model_config import Ssd
from detloom.trainer_module.centernet import build_centernet_detector
from detloom.trainer_module.ssd import build_ssd_detector


class Detector(Protocol):
    """A network and what its outputs mean; plain functions, to be called inside a `tf.function`."""

    @property
    def config(self) -> Model: ...

    @property
    def label_map(self) -> LabelMap: ...

    @property
    def network(self) -> keras.Model: ...

    @property
    def loss_names(self) -> tuple[str, ...]:
        """Of what `losses` returns."""
        ...

    def describe(self) -> str:
        """What of its size the log says beside the parameters, such as "12804 anchors"."""
        ...

    def count_matches(self, batch: dict[str, tf.Tensor]) -> tf.Tensor:
        """What `losses` divides by where it is 1 or more, float32: the count over parts of a batch is their sum."""
        ...

    def losses(
        self, batch: dict[str, tf.Tensor], *, training: bool, num_matches: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Weighted scalars, named `..._loss`, of a batch of `build_train_dataset`; training minimizes their sum.

        Args:
            num_matches: of `count_matches`, where `batch` is a part of another, as a replica has it: the losses of the
                parts then add up to those of the whole. None: of this batch.
        """
        ...

    def losses_of_outputs(
        self, outputs: dict[str, tf.Tensor], batch: dict[str, tf.Tensor], num_matches: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """The same from what the network answered."""
        ...

    def detect(self, images_BHW3: tf.Tensor, true_hw_B2: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Detections (`schemas/detections.py`) in prepared pictures (`prepare_image`).

        Args:
            true_hw_B2: rows and columns that are picture; the rest is padding. None: there is no padding.
        """
        ...

    def detections_of_outputs(
        self, outputs: dict[str, tf.Tensor], true_hw_B2: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """The same from what the network answered."""
        ...


def build_detector(config: Model, label_map: LabelMap) -> Detector:
    """A detector with random weights.

    Raises:
        InputError: if the configuration names another number of classes than the label map.
    """
    if config.num_classes not in (None, label_map.num_classes):
        raise InputError(
            f"model.num_classes: got {config.num_classes}, the label map has {label_map.num_classes} classes; set "
            f"model.num_classes to {label_map.num_classes}, or leave it out."
        )
    match config:
        case Ssd():
            return build_ssd_detector(config, label_map)
        case CenterNet():
            return build_centernet_detector(config, label_map)
    raise AssertionError(f"no such detector: {config}")
