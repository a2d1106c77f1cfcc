"""Requests that TensorFlow Serving sends itself when it loads a model, so that no user waits for the first call."""

from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from detloom.schemas import detections as names


def write_warm_up_requests(inputs: dict[str, np.ndarray], model_dir: Path) -> None:
    """Write one request for each signature of `inputs`, where its input lies, into the SavedModel's folder.

    Source: tensorflow.org/tfx/serving/saved_model_warmup.
    """
    path = model_dir / names.WARM_UP_FILE
    path.parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, value in inputs.items():
            request = predict_pb2.PredictRequest()
            request.model_spec.signature_name = signature
            request.inputs[names.SIGNATURE_INPUTS[signature]].CopyFrom(tf.make_tensor_proto(value))
            log = prediction_log_pb2.PredictionLog(predict_log=prediction_log_pb2.PredictLog(request=request))
            writer.write(log.SerializeToString())
