import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.model_card_config import ModelCardConfig
from detloom.schemas.typed_dict import from_json, to_canonical_json


def test_nothing_has_to_be_stated():
    assert ModelCardConfig().license == ""
    assert ModelCardConfig().limits == ()


def test_it_survives_its_way_through_json():
    stated = ModelCardConfig(purpose="Zählt Zellen.", owners=("Ada",), citation="a\nb", limits=("One camera.",))
    assert from_json(ModelCardConfig, to_canonical_json(stated)) == stated


@pytest.mark.parametrize("field", ["owners", "limits"])
def test_an_entry_without_text_is_refused(field):
    with pytest.raises(InputError, match=f"{field}: got an entry without text, allowed: text in each entry"):
        ModelCardConfig(**{field: ("Ada", " ")})
