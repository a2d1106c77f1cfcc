import json
from datetime import datetime, timezone

import pytest

from detloom.components.retrain import training_record
from detloom.components.retrain.training_record import (
    append_record,
    read_last_record,
    records_state,
    short_fingerprint,
)
from detloom.schemas.errors import InputError
from detloom.schemas.run_file.schedule import Retrain

FIRST, SECOND = "2026-03-01T03:05:12+00:00", "2026-03-02T03:00:00.250000+00:00"


def test_a_record_survives_a_round_trip(tmp_path, make_training):
    training = make_training(time=SECOND, outcome="refused", reason="Training: span 13 is new.", version=2)
    name = append_record(str(tmp_path), "cells", training)
    assert name == "20260302T030000.250000Z.json"
    assert (tmp_path / "training_records/cells" / name).is_file()
    assert read_last_record(str(tmp_path), "cells") == training


@pytest.mark.reliability("clock jump", "metadata")
def test_the_newest_record_is_read_regardless_of_the_order_of_writing(tmp_path, make_training):
    append_record(str(tmp_path), "cells", make_training(time=SECOND, span=13))
    append_record(str(tmp_path), "cells", make_training(time=FIRST, span=12))
    assert read_last_record(str(tmp_path), "cells").span == 13


def test_times_of_different_zones_are_ordered_correctly(tmp_path, make_training):
    append_record(str(tmp_path), "cells", make_training(time="2026-03-01T23:30:00-05:00", span=13))  # 04:30 of the 2nd
    append_record(str(tmp_path), "cells", make_training(time=SECOND, span=12))
    assert read_last_record(str(tmp_path), "cells").span == 13


def test_pipelines_that_share_a_folder_do_not_see_each_other(tmp_path, make_training):
    append_record(str(tmp_path), "cells", make_training())
    assert read_last_record(str(tmp_path), "nuclei") is None


@pytest.mark.reliability("torn file", "metadata")
@pytest.mark.parametrize(
    "text", ["", '{"time": "2026-03-0', "[]", '{"time": "2026-03-02"}', "null", "\udcff", "[" * 100_000]
)
def test_an_invalid_file_is_skipped_and_logged(tmp_path, make_training, caplog, text):
    append_record(str(tmp_path), "cells", make_training())
    broken = tmp_path / "training_records/cells/20260303T030000.000000Z.json"
    broken.write_bytes(text.encode(errors="surrogateescape"))
    assert read_last_record(str(tmp_path), "cells").span == 12
    assert broken.name in caplog.text


@pytest.mark.parametrize("config_hash", ["c0", "[]"])
def test_a_record_without_hashes_by_part_is_skipped(tmp_path, make_training, caplog, config_hash):
    name = append_record(str(tmp_path), "cells", make_training())
    path = tmp_path / "training_records/cells" / name
    path.write_text(json.dumps({**json.loads(path.read_text()), "config_hash": config_hash}))
    assert read_last_record(str(tmp_path), "cells") is None
    assert name in caplog.text


def test_an_unknown_key_of_a_later_version_is_ignored(tmp_path, make_training):
    name = append_record(str(tmp_path), "cells", make_training())
    path = tmp_path / "training_records/cells" / name
    path.write_text(json.dumps({**json.loads(path.read_text()), "novelty": 1}))
    assert read_last_record(str(tmp_path), "cells") == make_training()


@pytest.mark.reliability("kill", "metadata")
def test_other_files_and_unfinished_writes_are_ignored(tmp_path, make_training):
    append_record(str(tmp_path), "cells", make_training())
    for name in (".20260303T030000.000000Z.json.0123", "notes.txt", "20260303.json"):
        (tmp_path / "training_records/cells" / name).write_text("{}")
    assert read_last_record(str(tmp_path), "cells") == make_training()


def test_the_state_changes_with_a_new_record_and_with_age(tmp_path, make_training, monkeypatch):
    def state_at(second, retrain):
        moment = datetime(2026, 3, 3, 3, 5, second, tzinfo=timezone.utc)
        monkeypatch.setattr(training_record, "current_time", lambda: moment)
        return records_state(retrain, "cells", "")

    retrain = Retrain(max_age_days=2, records=str(tmp_path))
    assert state_at(11, retrain) == ""
    append_record(str(tmp_path), "cells", make_training())
    first = state_at(11, retrain)
    assert state_at(12, retrain) == f"{first}, too old"
    append_record(str(tmp_path), "cells", make_training(outcome="refused"))  # evaluated again
    assert state_at(11, retrain) not in ("", first)
    append_record(str(tmp_path), "cells", make_training(time=SECOND))
    second = state_at(12, retrain)
    assert second not in (first, f"{first}, too old")
    assert state_at(12, Retrain(new_span=True, records=str(tmp_path))) == second


def test_an_unavailable_storage_is_an_input_error_without_the_password():
    retrain = Retrain(new_span=True, records="gs://user:planted@host/records")
    with pytest.raises(InputError) as refused:
        records_state(retrain, "cells", "")
    assert "planted" not in str(refused.value)
    assert str(refused.value).startswith("retrain.records: gs://")
    assert "bucket" in str(refused.value)


def test_short_fingerprint_matches_sha_256():
    assert short_fingerprint("") == ""
    assert short_fingerprint("abc") == "ba7816bf8f01cfea"  # the first bytes of SHA-256's published example
