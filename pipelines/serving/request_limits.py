"""Limits of a request to `detloom serve`: bytes, seconds, images. The limits of an image: predict/image_limits.py."""

import re
from email.message import Message
from http import HTTPStatus
from io import BufferedIOBase

DEFAULT_MAX_REQUEST_MB = 32.0  # an image in base64 is a third larger than its file
REQUEST_SECONDS = 30.0  # to receive the whole request, however slowly it arrives
MAX_BATCH = 16  # all images of a request are in memory at once, and a few bytes can be a large image


class RequestError(Exception):
    """A request is refused, with an HTTP status and a sentence for the client."""

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(message)
        self.message, self.status = message, status


def read_body(headers: Message, file: BufferedIOBase, max_bytes: int) -> bytes:
    """Return the body of a request.

    Raises:
        RequestError: its length is not stated or too large, or it did not arrive in time.
    """
    lengths = headers.get_all("Content-Length", [])
    if "Transfer-Encoding" in headers or len(lengths) != 1 or not re.fullmatch("[0-9]{1,18}", lengths[0]):
        raise RequestError("one Content-Length is needed, and no Transfer-Encoding.", HTTPStatus.LENGTH_REQUIRED)
    num_bytes = int(lengths[0])
    if num_bytes > max_bytes:
        message = f"got a request of {num_bytes} bytes, allowed: {max_bytes} (--max-request-mb)."
        raise RequestError(message, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    body = file.read(num_bytes)
    if len(body) < num_bytes:
        message = f"got {len(body)} of {num_bytes} bytes within {REQUEST_SECONDS:.0f} s."
        raise RequestError(message, HTTPStatus.REQUEST_TIMEOUT)
    return body
