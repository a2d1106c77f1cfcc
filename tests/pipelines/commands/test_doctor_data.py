from types import SimpleNamespace

import pytest

from detloom.pipelines.commands import doctor_data
from detloom.pipelines.commands.doctor_data import check_data_sample, describe_sample
from detloom.pipelines.commands.findings import Finding, Probe
from detloom.schemas.run_file.data import Data, Splits
from detloom.schemas.run_file.data_checks import DataChecks

GOOD = {
    "error": "",
    "data_format": "voc",
    "num_records": 40,
    "num_records_refused": 0,
    "num_boxes": 100,
    "num_boxes_refused": 3,
    "reasons": {"box_outside_image": 3},
    "first": "Annotations/1.xml: a box",
}


def a_run(path):
    data = Data(format="voc", path=str(path), splits=Splits(train="a", eval="b", test="c"))
    return SimpleNamespace(data=data, checks=DataChecks())


def test_few_refusals_are_ok():
    assert describe_sample(GOOD, 0.05) == Finding(
        name="data sample", status="ok", found="voc: 0 of 40 records refused, 3 of 100 boxes refused"
    )


@pytest.mark.parametrize(("num_refused", "status"), [(2, "ok"), (3, "warning"), (40, "error")])
def test_refused_records_are_a_warning_and_all_of_them_an_error(num_refused, status):
    finding = describe_sample({**GOOD, "num_records_refused": num_refused, "reasons": {"missing_file": 9}}, 0.05)
    assert finding.status == status
    assert ("missing_file 9" in finding.found) == (status != "ok")


def test_a_sample_without_boxes_is_judged_by_its_records():
    assert describe_sample({**GOOD, "num_boxes": 0, "num_boxes_refused": 0}, 0.05).status == "ok"


def test_data_that_cannot_be_read_are_an_error_with_the_reason():
    finding = describe_sample({"error": "data: no format is recognised"}, 0.05)
    assert (finding.status, finding.found) == ("error", "data: no format is recognised")


def test_a_sample_that_takes_too_long_is_a_warning(monkeypatch, tmp_path):
    failed = Probe({}, "reading a sample did not end within 60 s", is_timeout=True)
    monkeypatch.setattr(doctor_data, "run_probe", lambda *arguments, **options: failed)
    (finding,) = check_data_sample(a_run(tmp_path))
    assert finding.status == "warning"
    assert "within 60 s" in finding.found


def test_the_embedded_data_set_is_not_sampled():
    assert list(check_data_sample(a_run("embedded:digits"))) == []


@pytest.mark.slow
def test_the_sample_of_a_run_is_read_in_a_process(monkeypatch, tmp_path):
    (tmp_path / "data/Annotations").mkdir(parents=True)
    (finding,) = check_data_sample(a_run(tmp_path / "data"))
    assert finding.status == "error"
    assert "ImageSets/Main/a.txt" in finding.found
