"""Fixtures for all folders: small test data, a server like Cloud Storage, provoked faults, tiers."""

import contextlib
import io
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Tests are no package.
sys.path += [str(Path(__file__).parent / name) for name in ("support", "components/fakes")]
pytest_plugins = ["tiers", "faults"]

Box = tuple[float, float, float, float]  # ymin, xmin, ymax, xmax, relative


@pytest.fixture(scope="session")
def free_ports() -> Callable[[int], list[int]]:
    """Return a function that finds different ports of this machine that nobody uses now."""

    def find(count: int) -> list[int]:
        with contextlib.ExitStack() as stack:
            listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
            return [listener.getsockname()[1] for listener in listeners]

    return find


@pytest.fixture(scope="session", autouse=True)
def _temporary_files_deleted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Delete what libraries leave in the folder of temporary files; TFX leaves 49 MB for a node with Beam options."""
    tmp_path_factory.getbasetemp()  # stays where it is, for a look after the tests
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(autouse=True)
def _logging_left_as_it_was() -> Iterator[None]:
    """Restore logging after a test, because commands redirect this process's log."""
    from absl import logging as absl_logging

    loggers = [logging.getLogger(name) for name in ("", "absl", "tensorflow", "detloom")]
    before = [(list(logger.handlers), logger.propagate, logger.level) for logger in loggers]
    verbosity = absl_logging.get_verbosity()
    yield
    absl_logging.set_verbosity(verbosity)
    for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.fixture(scope="session")
def bucket_servers() -> Iterator[Any]:
    """Servers with the APIs of Cloud Storage and of S3, by scheme."""
    from bucket_server import BucketServer

    servers = {"gs": BucketServer(is_google=True), "s3": BucketServer(is_google=False)}
    with servers["gs"].running(), servers["s3"].running():
        yield servers


@pytest.fixture
def make_bucket(bucket_servers: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that returns an empty bucket at SCHEME://bucket; requests are repeated without waiting."""
    from bucket_server import Bucket

    aws = {"ENDPOINT_URL_S3": bucket_servers["s3"].url, "ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test"}
    for name, value in aws.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket_servers["gs"].url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("detloom.components.storage.bucket._FIRST_WAIT_SECONDS", 0.001)

    def make(scheme: str) -> Any:
        bucket_servers[scheme].bucket = Bucket()
        return bucket_servers[scheme].bucket

    return make


@pytest.fixture
def google_bucket(make_bucket: Any) -> Any:
    return make_bucket("gs")


@pytest.fixture
def s3_bucket(make_bucket: Any) -> Any:
    return make_bucket("s3")


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A headless browser for tests of pages; skips where none is installed."""
    from headless_browser import BROWSERS, Browser, find_browser

    path = find_browser()
    if path is None:
        pytest.skip(f"no browser on the PATH; looked for: {', '.join(BROWSERS)} (Debian: apt install chromium)")
    browser = Browser(path, tmp_path_factory.mktemp("browser"))
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def make_example() -> Callable[..., bytes]:
    """Return a function that makes a tf.Example with a gray PNG; every box is filled with a color of its class."""
    import tensorflow as tf
    from PIL import Image

    from detloom.schemas.contracts import example_keys as keys

    def make(
        boxes: Sequence[Box] = (),
        class_ids: Sequence[int] | None = None,
        image_hw: tuple[int, int] = (64, 64),
        name: str = "img",
        crowds: Sequence[int] | None = None,
        masks: Sequence[Any] = (),
        keypoints: Sequence[Sequence[tuple[float, float, int]]] = (),
    ) -> bytes:
        """Args: masks: one for each box, [H, W] or None; keypoints: of each box, (y, x, visibility), relative."""
        height, width = image_hw
        ids = list(class_ids if class_ids is not None else [1] * len(boxes))
        image = np.full((height, width, 3), 128, np.uint8)
        for (ymin, xmin, ymax, xmax), class_id in zip(boxes, ids, strict=True):
            rows, columns = slice(int(ymin * height), int(ymax * height)), slice(int(xmin * width), int(xmax * width))
            image[rows, columns] = [255 * (class_id % 2), 255 * (class_id // 2 % 2), 60]
        example = tf.train.Example()
        feature = example.features.feature
        feature[keys.IMAGE_ENCODED].bytes_list.value.append(encode_png(image))
        feature[keys.IMAGE_SOURCE_ID].bytes_list.value.append(name.encode())
        feature[keys.IMAGE_HEIGHT].int64_list.value.append(height)
        feature[keys.IMAGE_WIDTH].int64_list.value.append(width)
        for i, key in enumerate(keys.BOX_KEYS_YXYX):
            feature[key].float_list.value.extend(box[i] for box in boxes)
        feature[keys.CLASS_ID].int64_list.value.extend(ids)
        feature[keys.IS_CROWD].int64_list.value.extend(crowds if crowds is not None else [0] * len(ids))
        pngs = [b"" if mask is None else encode_png(np.asarray(mask, np.uint8)) for mask in masks]
        if masks:
            feature[keys.MASK].bytes_list.value.extend(pngs)
        if keypoints:
            points = [point for of_box in keypoints for point in of_box]
            feature[keys.KEYPOINT_Y].float_list.value.extend(y for y, _, _ in points)
            feature[keys.KEYPOINT_X].float_list.value.extend(x for _, x, _ in points)
            feature[keys.KEYPOINT_VISIBILITY].int64_list.value.extend(seen for _, _, seen in points)
            feature[keys.NUM_KEYPOINTS].int64_list.value.extend(map(len, keypoints))
        return bytes(example.SerializeToString())

    def encode_png(pixels: Any) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, format="PNG")
        return buffer.getvalue()

    return make


@pytest.fixture(scope="session")
def write_records() -> Callable[[Path, Sequence[bytes]], Path]:
    """Return a function that writes serialized examples to one TFRecord file."""
    import tensorflow as tf

    def write(path: Path, records: Sequence[bytes]) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tf.io.TFRecordWriter(str(path)) as writer:
            for record in records:
                writer.write(record)
        return path

    return write


@pytest.fixture(scope="session")
def reference_dir() -> Path:
    """Return the folder with reference values of the Object Detection API; skip the test if it is missing."""
    folder = Path(os.environ.get("DETLOOM_SHARED", Path(__file__).parents[2] / "shared")) / "parity"
    if not folder.is_dir():
        pytest.skip("no reference values: set DETLOOM_SHARED to the folder that holds parity/")
    return folder
