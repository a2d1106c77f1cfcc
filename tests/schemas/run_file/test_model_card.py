import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.run_file.model_card import ModelCardSettings


@pytest.mark.parametrize("field", ["owners", "limits"])
def test_blank_entry_is_rejected(field):
    with pytest.raises(InputError, match=f"{field}: got an entry without text, allowed: text in each entry"):
        ModelCardSettings(**{field: ("Ada", " ")})
