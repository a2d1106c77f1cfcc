"""Which levels a neck gives, and from which sizes of picture. Imports no TensorFlow, so that asking costs nothing."""

from detloom.schemas.network_config import ExtraFeatureLayers, Neck

FINEST_PLAIN_LEVEL = 4  # of plain SSD: the backbone's maps of stride 16 and 32, then coarser ones
COARSEST_BACKBONE_LEVEL = 5
MAX_EXTRA_LEVELS = 6  # of plain SSD, the backbone's two included: the reference has depths for no more


def pyramid_levels(neck: Neck) -> tuple[int, ...]:
    """Levels from fine to coarse; level l has a stride of 2**l pixels."""
    if isinstance(neck, ExtraFeatureLayers):
        return tuple(range(FINEST_PLAIN_LEVEL, FINEST_PLAIN_LEVEL + neck.num_layers))
    return tuple(range(neck.min_level, neck.max_level + 1))


def padded_hw(image_hw: tuple[int, int], multiple: int) -> tuple[int, int]:
    """Sides rounded up to multiples of `multiple`."""
    return -(-image_hw[0] // multiple) * multiple, -(-image_hw[1] // multiple) * multiple
