import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.model.config import NonFinite
from detloom.trainer_module.run_state.nonfinite import Incidents, describe_incident


def test_skipped_batch_is_remembered_by_a_resumed_run(tmp_path):
    Incidents(tmp_path / "n.json", NonFinite(action="skip_batch")).add(7, 0.1, ("a", "b"))
    again = Incidents(tmp_path / "n.json", NonFinite(action="skip_batch"))
    assert (again.skipped_steps, again.rate_factor) == ({7}, 1.0)


def test_rate_is_lowered_at_each_incident(tmp_path):
    policy = NonFinite(action="lower_rate", rate_factor=0.5)
    incidents = Incidents(tmp_path / "n.json", policy)
    incidents.add(7, 0.1, ("a",))
    assert incidents.add(7, 0.05, ("a",)).rate_factor == 0.25
    again = Incidents(tmp_path / "n.json", policy)
    assert (again.skipped_steps, again.rate_factor) == (frozenset(), 0.25)


def test_description_names_step_rate_and_images(tmp_path):
    incident = Incidents(tmp_path / "n.json", NonFinite()).add(7, 0.125, ("cat.jpg", "dog.jpg"))
    description = describe_incident(incident)
    assert all(part in description for part in ("step 8", "0.125", "cat.jpg, dog.jpg"))


def test_action_stop_raises_at_once(tmp_path):
    with pytest.raises(InputError, match=r"step 8 .*: a\. .*train\.nonfinite"):
        Incidents(tmp_path / "n.json", NonFinite(action="stop")).add(7, 0.1, ("a",))


def test_more_than_max_times_incidents_raise(tmp_path):
    incidents = Incidents(tmp_path / "n.json", NonFinite(max_times=2))
    for step in (7, 9):
        incidents.add(step, 0.1, ("a",))
    with pytest.raises(InputError, match=r"step 12 .*incident 3; train\.nonfinite\.max_times is 2"):
        incidents.add(11, 0.1, ("a",))


@pytest.mark.parametrize(
    ("action", "steps", "expected"),
    [
        ("skip_batch", [7], False),
        ("skip_batch", [7, 9], False),
        ("skip_batch", [7, 8], True),
        ("lower_rate", [7, 7], True),
        ("lower_rate", [7, 9], False),
    ],
)
def test_divergence_is_distinguished_from_a_bad_image(tmp_path, action, steps, expected):
    incidents = Incidents(tmp_path / "n.json", NonFinite(action=action))
    for step in steps:
        incidents.add(step, 0.1, ("a",))
    assert incidents.has_diverged() is expected
