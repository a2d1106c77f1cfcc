"""How the exported model is evaluated."""

from dataclasses import dataclass

from detloom.schemas.checks import check_fields
from detloom.schemas.slices_config import ImageSlices, ObjectSlices, SizeBin


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """How the exported model is evaluated."""

    batch_size: int = 8
    """Pictures through the exported model at a time."""
    num_pictures: int = 6
    """Pictures with boxes on the report page, of each kind: mistakes, missed objects, better, worse, the first ones."""
    image_slices: tuple[ImageSlices, ...] = ()
    """Images that get numbers of their own, such as those of one camera."""
    object_slices: tuple[ObjectSlices, ...] = ()
    """Objects whose recall is measured apart, such as those at the border."""
    sizes: tuple[SizeBin, ...] = ()
    """Sizes of objects beside small, medium and large."""
    wanted_precision: float = 0.9
    """For each class the least score that reaches it is looked for."""
    min_slice_count: int = 20
    """Slices of fewer images, or objects, are marked as small."""

    def __post_init__(self) -> None:
        check_fields(self, "1 or more", "batch_size", "min_slice_count")
        check_fields(self, "0 or more", "num_pictures")
        check_fields(self, "0 to 1", "wanted_precision")
