import pytest

from detloom.schemas.config import NonFinite
from detloom.schemas.errors import InputError
from detloom.trainer_module.nonfinite import Incidents, describe_incident


def test_a_batch_that_is_skipped_is_remembered_by_the_run_that_goes_on(tmp_path):
    Incidents(tmp_path / "n.json", NonFinite(action="skip_batch")).add(7, 0.1, ("a", "b"))
    again = Incidents(tmp_path / "n.json", NonFinite(action="skip_batch"))
    assert (again.skipped_steps, again.rate_factor) == ({7}, 1.0)


def test_a_rate_is_lowered_each_time(tmp_path):
    policy = NonFinite(action="lower_rate", rate_factor=0.5)
    incidents = Incidents(tmp_path / "n.json", policy)
    incidents.add(7, 0.1, ("a",))
    assert incidents.add(7, 0.05, ("a",)).rate_factor == 0.25
    again = Incidents(tmp_path / "n.json", policy)
    assert (again.skipped_steps, again.rate_factor) == (frozenset(), 0.25)


def test_the_sentence_names_step_rate_and_pictures(tmp_path):
    incident = Incidents(tmp_path / "n.json", NonFinite()).add(7, 0.125, ("cat.jpg", "dog.jpg"))
    assert describe_incident(incident) == (
        "Loss or gradients were not finite in step 8 at a learning rate of 0.125; its pictures: cat.jpg, dog.jpg."
    )


def test_stop_stops_at_once(tmp_path):
    with pytest.raises(InputError, match=r"step 8 .*pictures: a\. Look at these pictures.*train\.nonfinite"):
        Incidents(tmp_path / "n.json", NonFinite(action="stop")).add(7, 0.1, ("a",))


def test_after_so_many_times_it_is_given_up(tmp_path):
    incidents = Incidents(tmp_path / "n.json", NonFinite(max_times=2))
    for step in (7, 9):
        incidents.add(step, 0.1, ("a",))
    with pytest.raises(InputError, match=r"step 12 .*That was incident 3; train\.nonfinite\.max_times is 2"):
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
def test_weights_that_diverge_are_told_from_a_bad_picture(tmp_path, action, steps, expected):
    incidents = Incidents(tmp_path / "n.json", NonFinite(action=action))
    for step in steps:
        incidents.add(step, 0.1, ("a",))
    assert incidents.are_not_the_pictures_fault() is expected
