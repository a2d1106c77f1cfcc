"""Pyramid levels of a neck and padded image sizes. Imports no TensorFlow, so that the import is cheap."""

from detloom.schemas.model.network import ExtraFeatureLayers, Neck

FINEST_PLAIN_LEVEL = 4  # plain SSD uses the backbone's maps of stride 16 and 32, then coarser ones
COARSEST_BACKBONE_LEVEL = 5
MAX_EXTRA_LEVELS = 6  # plain SSD, including the two of the backbone; the reference has depths for no more


def pyramid_levels(neck: Neck) -> tuple[int, ...]:
    """Return the levels from fine to coarse; level l has a stride of 2**l pixels."""
    if isinstance(neck, ExtraFeatureLayers):
        return tuple(range(FINEST_PLAIN_LEVEL, FINEST_PLAIN_LEVEL + neck.num_layers))
    return tuple(range(neck.min_level, neck.max_level + 1))


def padded_hw(image_hw: tuple[int, int], multiple: int) -> tuple[int, int]:
    """Round both sides up to a multiple of `multiple`."""
    return -(-image_hw[0] // multiple) * multiple, -(-image_hw[1] // multiple) * multiple
