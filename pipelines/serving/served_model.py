"""A loaded model that answers one request at a time and checks images first; status and metadata for the API."""

import threading
from http import HTTPStatus
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.json_format import MessageToDict

from detloom.pipelines.predict.image_limits import check_images
from detloom.pipelines.serving.predict_request import format_predict_response, parse_predict_request
from detloom.pipelines.serving.request_limits import RequestError
from detloom.schemas.contracts.detections import SIGNATURE_ENCODED, SIGNATURE_INPUTS
from detloom.schemas.contracts.runtime_names import RuntimeName
from detloom.schemas.contracts.version_names import parse_version
from detloom.schemas.errors import InputError
from detloom.trainer_module.inference.choose_runtime import load_runtime
from detloom.trainer_module.inference.encoded_image import EncodedImage
from detloom.trainer_module.inference.model_files import find_saved_model, read_exported_label_map
from detloom.trainer_module.inference.runtime import FailedCallError

_INPUT = SIGNATURE_INPUTS[SIGNATURE_ENCODED]
_MAP_TYPE = "type.googleapis.com/tensorflow.serving.SignatureDefMap"


class ServedModel:
    """One version of a model.

    Attributes:
        version: the number of its folder; 1 if the folder name is not a number.
        has_pixel_boxes: True if its boxes are in pixels, False if they are relative to the image size.
    """

    def __init__(self, model: Path, name: str, runtime: RuntimeName = "auto") -> None:
        """Load the model that `find_saved_model` finds; see `load_runtime` for `runtime` and errors."""
        model_dir = find_saved_model(model).resolve()
        number = parse_version(model_dir.name)
        self.name, self.version = name, 1 if number is None else number
        self._runtime = load_runtime(model_dir, runtime)
        self.label_map = read_exported_label_map(str(model_dir))
        self.has_pixel_boxes = self._runtime.has_pixel_boxes
        self._lock = threading.Lock()

    def predict(self, body: bytes) -> dict[str, Any]:
        """Return the response to a `:predict` request as plain values for JSON.

        Requests are parsed one at a time as well, because parsed JSON takes up to fifty times its size (nested lists).

        Raises:
            RequestError: with a sentence for the client.
        """
        with self._lock:
            images = parse_predict_request(body)
            try:
                check_images(images, _INPUT)
            except InputError as error:
                raise RequestError(str(error)) from None
            return self._call(images)

    def wait_until_idle(self, timeout_seconds: float) -> None:
        """Wait for the current call and allow no other. A process that exits during a call may crash."""
        self._lock.acquire(timeout=timeout_seconds)

    def status(self) -> dict[str, Any]:
        """Return a `GetModelStatusResponse`. The server starts only after the model is loaded."""
        status = {"error_code": "OK", "error_message": ""}
        return {"model_version_status": [{"version": str(self.version), "state": "AVAILABLE", "status": status}]}

    def metadata(self) -> dict[str, Any]:
        """Return a `GetModelMetadataResponse`, which TensorFlow reads from the SavedModel now.

        Raises `RequestError` if the file was removed.
        """
        from detloom.trainer_module.inference.saved_model_runtime import read_signatures

        try:
            definitions = read_signatures(self._runtime.model_dir)
        except InputError:
            raise RequestError("the files of this version were removed.", HTTPStatus.NOT_FOUND) from None
        signatures = {
            name: MessageToDict(definition, preserving_proto_field_name=True)
            for name, definition in sorted(definitions.items())
        }
        return {
            "model_spec": {"name": self.name, "signature_name": "", "version": str(self.version)},
            "metadata": {"signature_def": {"@type": _MAP_TYPE, "signature_def": signatures}},
        }

    def _call(self, images: list[bytes]) -> dict[str, Any]:
        try:
            outputs = self._runtime.call([EncodedImage(image, f"{_INPUT}[{i}]") for i, image in enumerate(images)])
            if not all(np.isfinite(value).all() for value in outputs.values()):
                raise ValueError("the model returned values that are NaN or infinity")
            return format_predict_response(outputs)
        except FailedCallError as error:
            if error.is_refusal:
                raise RequestError(f"the model rejected the input ({error}).") from None
            raise RequestError(f"the model failed ({error}).", HTTPStatus.INTERNAL_SERVER_ERROR) from None
        except InputError as error:  # an image that the runtime gets decoded
            raise RequestError(str(error)) from None
        except ValueError as error:
            raise RequestError(f"{error}.", HTTPStatus.INTERNAL_SERVER_ERROR) from None
