"""Pictures for models that take them in the network's size: TensorFlow Lite and ONNX files."""

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from detloom.schemas.config import Model
from detloom.trainer_module.preprocess import network_hw, resize_image
from detloom.trainer_module.serving_contract import padding_rgb


def fit_picture(image_rgb: npt.NDArray[np.uint8], model: Model) -> tuple[npt.NDArray[np.float32], tuple[int, int]]:
    """A picture [H, W, 3] of any size as float32 of the network's, 0 to 255, and the rows and columns that are picture.

    What `prepare_image` does, without the normalization, which the model does itself.
    """
    height, width = network_hw(model.image_resizer)
    resized = resize_image(tf.constant(image_rgb), model.image_resizer).numpy().clip(0, 255)
    rows, columns = resized.shape[:2]
    fitted = np.broadcast_to(padding_rgb(model), (height, width, 3)).copy()
    fitted[:rows, :columns] = resized
    return fitted, (rows, columns)
