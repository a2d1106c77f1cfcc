import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.reading.typed_dict import from_json, to_canonical_json
from detloom.schemas.run_file.model_card import ModelCardSettings


def test_all_texts_are_optional():
    assert ModelCardSettings().license == ""
    assert ModelCardSettings().limits == ()


def test_json_round_trip():
    stated = ModelCardSettings(purpose="Zählt Zellen.", owners=("Ada",), citation="a\nb", limits=("One camera.",))
    assert from_json(ModelCardSettings, to_canonical_json(stated)) == stated


@pytest.mark.parametrize("field", ["owners", "limits"])
def test_blank_entry_is_rejected(field):
    with pytest.raises(InputError, match=f"{field}: got an entry without text, allowed: text in each entry"):
        ModelCardSettings(**{field: ("Ada", " ")})
