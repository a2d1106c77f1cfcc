import pytest

from detloom.schemas.model.network import BiFpn, ExtraFeatureLayers, Fpn
from detloom.trainer_module.layers.necks.pyramid_levels import padded_hw, pyramid_levels


@pytest.mark.parametrize(
    ("neck", "levels"),
    [
        (Fpn(min_level=2, max_level=4), (2, 3, 4)),
        (BiFpn(min_level=3, max_level=8, num_iterations=1, num_filters=8), (3, 4, 5, 6, 7, 8)),
        (ExtraFeatureLayers(num_layers=6), (4, 5, 6, 7, 8, 9)),
        (ExtraFeatureLayers(num_layers=1), (4,)),
    ],
)
def test_levels_go_from_fine_to_coarse(neck, levels):
    assert pyramid_levels(neck) == levels


@pytest.mark.parametrize(
    ("image_hw", "multiple", "expected"),
    [((300, 320), 1, (300, 320)), ((300, 320), 32, (320, 320)), ((97, 1), 16, (112, 16))],
)
def test_sides_are_rounded_up_to_the_multiple(image_hw, multiple, expected):
    assert padded_hw(image_hw, multiple) == expected
