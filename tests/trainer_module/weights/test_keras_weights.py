"""Keras files, as keras.applications' models are saved in each format."""

import zipfile
from dataclasses import replace

import h5py
import keras
import numpy as np
import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.model.center_net import CenterNetFeatureExtractor
from detloom.schemas.presets.presets import find_preset
from detloom.trainer_module.weights import keras_weights
from detloom.trainer_module.weights.keras_weights import read_keras_weights


def extractor_of(preset, **changes):
    return replace(find_preset(preset).config.model.feature_extractor, **changes)


MOBILENET = extractor_of("ssd_mobilenet_v2_fpnlite_320x320", depth_multiplier=0.35, min_depth=8)
RESNET = extractor_of("ssd_resnet50_v1_fpn_640x640")


def set_random_weights(model):
    rng = np.random.default_rng(0)
    model.set_weights([rng.uniform(0.5, 1.5, weight.shape) for weight in model.weights])
    return model


def values(model):
    return {f"{layer.name}/{weight.name}": weight.numpy() for layer in model.layers for weight in layer.weights}


@pytest.fixture(scope="module")
def mobilenet():
    return set_random_weights(keras.applications.MobileNetV2((96, 96, 3), alpha=0.35, include_top=False, weights=None))


@pytest.mark.parametrize("ending", [".weights.h5", ".h5", ".keras"])
def test_every_variable_of_a_saved_model_is_read_by_name(mobilenet, tmp_path, ending):
    path = str(tmp_path / f"mobilenet{ending}")
    (mobilenet.save_weights if ending == ".weights.h5" else mobilenet.save)(path)
    found, expected = read_keras_weights(path, MOBILENET), values(mobilenet)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def conv_and_norm(*, use_bias):
    """Return the first layers of a ResNet."""
    image = keras.Input((6, 6, 3))
    x = keras.layers.Conv2D(4, 3, use_bias=use_bias, name="conv1_conv")(image)
    return keras.Model(image, keras.layers.BatchNormalization(name="conv1_bn")(x))


def test_biases_and_bgr_order_of_a_resnet_are_folded_into_other_weights(tmp_path):
    """The Keras model on BGR images, with biases, equals ours on RGB images, without biases."""
    theirs, ours = set_random_weights(conv_and_norm(use_bias=True)), conv_and_norm(use_bias=False)
    theirs.save_weights(tmp_path / "resnet.weights.h5")
    found = read_keras_weights(str(tmp_path / "resnet.weights.h5"), RESNET)
    assert found.keys() == values(ours).keys()
    for layer in ours.layers:
        for weight in layer.weights:
            weight.assign(found[f"{layer.name}/{weight.name}"])
    image = np.random.default_rng(1).uniform(-100, 100, (1, 6, 6, 3)).astype(np.float32)
    np.testing.assert_allclose(ours(image), theirs(image[..., ::-1]), rtol=1e-4, atol=1e-3)


# --- corrupt and malicious files --------------------------------------------------------------------------------------


def refusal(path):
    with pytest.raises(InputError, match=str(path)) as caught:
        read_keras_weights(str(path), MOBILENET)
    return str(caught.value)


@pytest.mark.reliability("hostile input", "train")
def test_values_in_another_file_are_not_read_and_links_are_not_followed(tmp_path):
    (tmp_path / "secret").write_bytes(b"12345678")
    with h5py.File(tmp_path / "external.h5", "w") as root:
        root.create_group("Conv1").create_dataset("kernel", (2,), "f4", external=[(str(tmp_path / "secret"), 0, 8)])
    with h5py.File(tmp_path / "secret.h5", "w") as root:
        root["kernel"] = np.ones(2, np.float32)
    layout = h5py.VirtualLayout((2,), "f4")
    layout[:] = h5py.VirtualSource(tmp_path / "secret.h5", "kernel", (2,))
    with h5py.File(tmp_path / "virtual.h5", "w") as root:
        root.create_virtual_dataset("Conv1/kernel", layout)
    for name in ("external.h5", "virtual.h5"):
        assert "/Conv1/kernel " in refusal(tmp_path / name)
    with h5py.File(tmp_path / "weights.h5", "w") as root:
        root["Conv1/kernel"] = np.zeros(2, np.float32)
        root["Conv2/kernel"] = h5py.ExternalLink("secret.h5", "kernel")
        root["Conv3"] = h5py.SoftLink("/Conv1")
    assert read_keras_weights(str(tmp_path / "weights.h5"), MOBILENET).keys() == {"Conv1/kernel"}


@pytest.mark.reliability("hostile input", "train")
@pytest.mark.parametrize(
    "claims",
    [
        {"a": {"shape": (10**12,), "chunks": (1000,)}},
        {"a": {"shape": (2**28,), "chunks": (1000,)}, "b": {"shape": (2**28 + 1,), "chunks": (1000,)}},  # 2 GiB + 4
        {"a": {"shape": (1,), "maxshape": (None,), "chunks": (2**29 + 1,)}},
    ],
)
def test_small_file_that_claims_a_large_size_is_refused_before_reading(tmp_path, claims):
    with h5py.File(tmp_path / "weights.h5", "w") as root:
        for layer, claim in claims.items():
            root.create_group(layer).create_dataset("kernel", dtype="f4", **claim)
    assert (tmp_path / "weights.h5").stat().st_size < 100_000
    assert f"bytes, allowed: {2 << 30}" in refusal(tmp_path / "weights.h5")


@pytest.mark.parametrize("name", ["model.keras", "weights.h5"])
def test_file_that_is_too_large_is_refused_before_reading(tmp_path, monkeypatch, name):
    with zipfile.ZipFile(tmp_path / "model.keras", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.weights.h5", bytes(2000))
    (tmp_path / "weights.h5").write_bytes(bytes(2000))
    monkeypatch.setattr(keras_weights, "_MAX_BYTES", 1000)
    assert "has 2000 bytes, allowed: 1000" in refusal(tmp_path / name)


def test_insufficient_memory_is_reported(tmp_path, monkeypatch):
    def exhausted(root):
        raise MemoryError

    monkeypatch.setattr(keras_weights, "_find_datasets", exhausted)
    h5py.File(tmp_path / "weights.h5", "w").close()
    assert "(MemoryError)" in refusal(tmp_path / "weights.h5")


@pytest.mark.reliability("torn file", "train")
def test_corrupt_archive_is_named(tmp_path):
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.weights.h5", np.random.default_rng(0).bytes(1000))
    content = bytearray(path.read_bytes())
    content[50:60] = b"\xff" * 10  # in the compressed bytes
    path.write_bytes(content)
    assert str(path) in refusal(path)


def test_empty_dataset_is_ignored_and_a_name_that_is_not_text_is_reported(tmp_path):
    with h5py.File(tmp_path / "weights.h5", "w") as root:
        root["Conv1/kernel"] = h5py.Empty("f4")
        root["Conv1/bias"] = np.zeros(2, np.float32)
    assert read_keras_weights(str(tmp_path / "weights.h5"), MOBILENET).keys() == {"Conv1/bias"}
    with h5py.File(tmp_path / "weights.h5", "w") as root:
        root.create_group(b"caf\xe9")["kernel"] = np.zeros(2, np.float32)
    assert r"b'caf\xe9'" in refusal(tmp_path / "weights.h5")


@pytest.mark.parametrize(
    ("preset", "backbone", "application", "settings"),
    [
        ("ssd_mobilenet_v1_fpn_640x640", "mobilenet_v1", "MobileNet", {"alpha": 1.0}),
        ("ssd_mobilenet_v2_fpnlite_320x320", "mobilenet_v2", "MobileNetV2", {"alpha": 1.0}),
        ("ssd_resnet50_v1_fpn_640x640", "resnet101_v1", "ResNet101", {}),
        ("ssd_resnet50_v1_fpn_640x640", "resnet152_v1", "ResNet152", {}),
        ("efficientdet_d0", "efficientnet-b3", "EfficientNetB3", {}),
    ],
)
def test_imagenet_weights_come_from_the_application_of_the_backbone(
    preset, backbone, application, settings, monkeypatch
):
    requests = []

    def build(**given):
        requests.append(given)
        return set_random_weights(conv_and_norm(use_bias=False))

    monkeypatch.setattr(keras.applications, application, build)
    extractor = extractor_of(preset, backbone=backbone)
    found = read_keras_weights(keras_weights.IMAGENET, extractor)
    assert requests == [{**settings, "include_top": False, "weights": "imagenet"}]
    assert {"conv1_conv/kernel", "conv1_bn/moving_mean"} <= found.keys()


@pytest.mark.parametrize(
    ("path", "extractor", "message"),
    [
        (
            keras_weights.IMAGENET,
            CenterNetFeatureExtractor(backbone="hourglass_104"),
            "got 'imagenet', but this detector",
        ),
        (keras_weights.IMAGENET, None, "fine_tune_checkpoint"),
        (keras_weights.IMAGENET, MOBILENET, "mobilenet_v2"),  # the download fails
        ("none.h5", MOBILENET, r"none\.h5"),
    ],
)
def test_weights_that_cannot_be_had_are_refused(path, extractor, message, monkeypatch):
    def fail(**given):
        raise Exception("URL fetch failure")  # as keras.utils.get_file does

    monkeypatch.setattr(keras.applications, "MobileNetV2", fail)
    with pytest.raises(InputError, match=message):
        read_keras_weights(path, extractor)
