"""Commands with addresses of buckets: each works, or refuses the address by name before it does anything."""

import pytest
from command_line import detloom_command, sentence

from detloom.pipelines import python_api
from detloom.schemas.errors import InputError


@pytest.fixture
def upload(google_bucket):
    """Return a function that copies a folder to the bucket and returns its address."""

    def call(folder, name):
        for path in folder.rglob("*"):
            if path.is_file():
                google_bucket.put(f"{name}/{path.relative_to(folder).as_posix()}", path.read_bytes())
        return f"gs://bucket/{name}"

    return call


def test_a_report_is_written_beside_examples_in_a_bucket(crowded, upload, google_bucket, tmp_path):
    address = upload(crowded, "examples")
    result = detloom_command("validate", address, "--config", tmp_path / "run.yaml", "--train-split", "a")
    assert "crowded_images" in sentence(result)
    assert f"Wrote {address}/validation/report.html" in result.output
    written = [name for name in google_bucket.contents() if name.startswith("examples/validation/")]
    assert written == ["examples/validation/report.html", "examples/validation/report.json"]


@pytest.mark.reliability("store failure", "validate")
def test_a_report_that_cannot_be_uploaded_is_an_error_and_the_next_one_is_complete(
    crowded, upload, google_bucket, tmp_path
):
    options = ("--output", "gs://bucket/report", "--config", tmp_path / "run.yaml", "--train-split", "a")
    words = ("validate", upload(crowded, "examples"), *options)
    detloom_command(*words)
    number = next(place for place, each in enumerate(google_bucket.requests, 1) if each.startswith("PUT"))
    before = google_bucket.contents()
    google_bucket.requests.clear()
    google_bucket.faults = {number: "refused"}
    error = detloom_command(*words).exception  # the program's main function makes a sentence of it
    assert isinstance(error, PermissionError)
    assert str(error.filename).startswith("gs://bucket/report")
    google_bucket.faults = {}
    assert "crowded_images" in sentence(detloom_command(*words))
    assert google_bucket.contents().keys() == before.keys()


def test_a_page_is_written_beside_examples_in_a_bucket(crowded, upload, google_bucket):
    result = detloom_command("inspect", upload(crowded, "examples"))
    assert result.output == "Wrote gs://bucket/examples/inspect.html\n"
    assert b"<html" in google_bucket.contents()["examples/inspect.html"]


def test_examples_in_a_bucket_are_exported(crowded, upload, tmp_path):
    result = detloom_command("export-coco", upload(crowded, "examples"), tmp_path / "coco")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "coco/annotations/a.json").is_file()


def test_a_folder_that_a_bucket_does_not_have_is_named(google_bucket):
    assert "gs://bucket/nothing: no such folder" in sentence(detloom_command("inspect", "gs://bucket/nothing"))
    assert "gs://bucket/nothing" in sentence(detloom_command("serve", "gs://bucket/nothing"))


@pytest.mark.parametrize(
    "words",
    [
        "data-service gs://bucket/run.yaml --host 127.0.0.1",
        "doctor gs://bucket/run.yaml",
        "evaluate --checkpoints gs://bucket/run",
        "evaluate --model s3://bucket/model --examples examples",
        "export gs://bucket/run --out exported",
        "export run --out gs://bucket/exported",
        "export-coco examples gs://bucket/coco",
        "export-yolo s3://bucket/examples yolo",
        "init gs://bucket/data",
        "inspect s3://bucket/examples",
        "lineage 1 --workspace gs://bucket/workspace",
        "predict photo.jpg --model model --output gs://bucket/found",
        "predict photo.jpg --model s3://bucket/model",
        "predict gs://bucket/photo.jpg --model model",
        "push model --to serving --reason test --card gs://bucket/card",
        "push s3://bucket/model --to serving --reason test",
        "run gs://bucket/data",
        "serve s3://bucket/serving",
        "train ssd_mobilenet_v2_fpnlite_320x320 --examples examples --out gs://bucket/run",
        "train ssd_mobilenet_v2_fpnlite_320x320 --examples s3://bucket/examples --out run",
        "validate s3://bucket/examples",
        "versions ftp://host/serving",
    ],
)
def test_an_address_is_refused_by_name(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (address,) = (word for word in words.split() if "://" in word)
    result = detloom_command(*words.split())
    assert result.exit_code in (1, 2)
    assert address in (result.output if result.exit_code == 2 else sentence(result))
    assert list(tmp_path.iterdir()) == []


def test_python_functions_refuse_an_address_by_name():
    with pytest.raises(InputError, match="gs://bucket/model"):
        python_api.load_detector("gs://bucket/model")
    with pytest.raises(InputError, match="gs://bucket/examples"):
        python_api.evaluate("model", "gs://bucket/examples")
