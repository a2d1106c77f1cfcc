"""Deep-MAC (arXiv:2104.00613): masks of any class for the boxes of a CenterNet.

Names and defaults are those of the Object Detection API's `pipeline.config`.
"""

from dataclasses import dataclass
from typing import Literal

from detloom.schemas.errors import check, check_fields
from detloom.schemas.model.losses import ClassificationLoss, WeightedSigmoid
from detloom.schemas.model.network import check_channels

MaskNetwork = Literal["hourglass10", "hourglass20", "hourglass32", "hourglass52", "hourglass100"]
_STRIDES: dict[MaskNetwork, int] = {  # of the smallest map of each network
    "hourglass10": 2,
    "hourglass20": 4,
    "hourglass32": 8,
    "hourglass52": 32,
    "hourglass100": 32,
}
_MAX_MASK_SIZE = 256


@dataclass(frozen=True, kw_only=True)
class DeepMac:
    """A mask of each detection, predicted by a deep network from the pixels of its box.

    One network for all classes learns masks from some classes and predicts them for the others, too.
    """

    classification_loss: ClassificationLoss = WeightedSigmoid()
    """Loss of every cell of a mask."""
    task_loss_weight: float = 1.0
    """Factor of the loss."""
    dim: int = 256
    """Channels of the embedding of an object, which is read at the center of its box."""
    pixel_embedding_dim: int = 16
    """Channels of the embedding of a pixel."""
    allowed_masked_classes_ids: tuple[int, ...] = ()
    """Ids in the label map of the classes whose masks are trained; empty trains all."""
    mask_size: int = 32
    """Rows and columns of a mask."""
    use_xy: bool = True
    """Add the position in the box to the embeddings of the pixels."""
    network_type: MaskNetwork = "hourglass52"
    """Network that predicts a mask from the embeddings."""
    use_instance_embedding: bool = True
    """Add the embedding of the object to those of the pixels."""
    num_init_channels: int = 64
    """Channels of the first convolution of the mask network; the others have multiples of them."""
    use_only_last_stage: bool = False
    """Train masks on the output of the last hourglass only, not on each of a stack."""

    def __post_init__(self) -> None:
        is_sigmoid = isinstance(self.classification_loss, WeightedSigmoid)
        check(is_sigmoid, "classification_loss", type(self.classification_loss).__name__, "WeightedSigmoid")
        check_fields(self, "0 or more", "task_loss_weight")
        check_channels(self, "dim", "pixel_embedding_dim", at_least=1)
        most = 1024  # the network has four times as many channels at the end
        channels = self.num_init_channels
        check(1 <= channels <= most, "num_init_channels", channels, f"1 to {most}")
        ids = self.allowed_masked_classes_ids
        check(min(ids, default=1) >= 1, "allowed_masked_classes_ids", ids, "ids of the label map, 1 or more")
        stride = _STRIDES[self.network_type]
        allowed = f"a multiple of {stride} up to {_MAX_MASK_SIZE} with {self.network_type}"
        side = self.mask_size
        check(0 < side <= _MAX_MASK_SIZE and side % stride == 0, "mask_size", side, allowed, "network_type")
