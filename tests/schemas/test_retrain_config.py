import pytest

from detloom.schemas.errors import FieldError
from detloom.schemas.retrain_config import Retrain


@pytest.mark.parametrize("reason", [{"new_span": True}, {"min_new_images": 1}, {"drift": True}, {"max_age_days": 0.5}])
def test_one_reason_is_enough(reason):
    assert Retrain(**reason)


def test_no_reason_at_all_is_refused():
    with pytest.raises(FieldError, match="new_span: got no reason, allowed: at least one of"):
        Retrain(records="/records")


@pytest.mark.parametrize("field", ["min_new_images", "max_age_days"])
def test_a_negative_limit_is_refused(field):
    with pytest.raises(FieldError, match=f"{field}: got -1, allowed: 0 or more"):
        Retrain(new_span=True, **{field: -1})
