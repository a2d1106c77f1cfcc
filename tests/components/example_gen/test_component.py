"""The TFX component: watched files, driver, constructor, executor."""

import json
import pickle
from dataclasses import replace
from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.testing.util import assert_that
from labelled_data import read_rejects
from tfx.components.util import tfxio_utils
from tfx.orchestration import data_types
from tfx.types import artifact_utils, standard_artifacts

from detloom.components.artifact_types import Rejects
from detloom.components.example_gen.component import DetectionExampleGen, Executor
from detloom.components.example_gen.driver import Driver, file_pattern, split_input_base, subfolder_of
from detloom.components.example_gen.params import ExampleGenParams
from detloom.schemas.contracts.label_map import read_label_map
from detloom.schemas.errors import InputError

VOC = ExampleGenParams(format="voc", splits={"train": "train", "eval": "val"})


def resolve(input_base, params=VOC, range_config=None):
    """Run our driver's resolution as TFX's launcher does."""
    component = DetectionExampleGen(str(input_base), params, range_config=range_config)
    properties = dict(component.exec_properties)
    info = data_types.PipelineInfo("", "")
    return Driver(None).resolve_exec_properties(properties, info, data_types.ComponentInfo("", "", info))


def make_artifacts(tmp_path):
    examples, rejects = standard_artifacts.Examples(), Rejects()
    examples.uri, rejects.uri = str(tmp_path / "gen/examples/1"), str(tmp_path / "gen/rejects/1")
    return {"examples": [examples], "rejects": [rejects]}


@pytest.mark.parametrize(
    ("input_base", "expected"),
    [
        ("/data/set", ("/data/set", "")),
        ("/data/set/", ("/data/set", "")),
        ("/data/span-{SPAN}/v{VERSION}", ("/data", "span-{SPAN}/v{VERSION}")),
        ("/data/{YYYY}-{MM}-{DD}/voc", ("/data", "{YYYY}-{MM}-{DD}/voc")),
        ("/data/{SPAN:3}", ("/data", "{SPAN:3}")),
        ("/{SPAN}", ("/", "{SPAN}")),
    ],
)
def test_the_base_is_cut_before_the_first_placeholder(input_base, expected):
    assert split_input_base(input_base) == expected


@pytest.mark.parametrize("rest", ["", "span-{SPAN}", "{YYYY}-{MM}-{DD}/voc"])
def test_the_data_folder_is_extracted_from_a_resolved_pattern(rest):
    assert subfolder_of(file_pattern(rest)) == rest


def test_a_path_is_known_when_the_pipeline_is_compiled():
    with pytest.raises(InputError, match="input_base: got a RuntimeParameter"):
        DetectionExampleGen(data_types.RuntimeParameter(name="data", ptype=str))


def test_wildcards_in_a_path_with_placeholders_are_an_error():
    with pytest.raises(InputError, match=r"span-\{SPAN\}/\*: .*placeholders"):
        split_input_base("/data/span-{SPAN}/*")


def test_the_component_outputs_examples_and_rejects_and_can_be_pickled():
    component = DetectionExampleGen("/data/set", VOC)
    assert component.outputs["examples"].type is standard_artifacts.Examples
    assert component.outputs["rejects"].type is Rejects
    params = ExampleGenParams.from_properties(component.exec_properties)
    assert params.code_fingerprint
    assert replace(params, code_fingerprint="") == VOC
    assert pickle.loads(pickle.dumps((Executor, Driver, VOC))) == (Executor, Driver, VOC)


def test_the_fingerprint_covers_every_file_also_through_links_and_tolerates_loops(make_voc, tmp_path):
    folder = make_voc({"train": ["a"], "val": ["b"]})
    (folder / "JPEGImages").rename(tmp_path / "disk2")
    (folder / "JPEGImages").symlink_to(tmp_path / "disk2")
    (tmp_path / "disk2/loop").symlink_to(tmp_path / "disk2")
    before = resolve(folder)["input_fingerprint"]
    assert resolve(folder)["input_fingerprint"] == before
    (tmp_path / "disk2/a.jpg").write_bytes(b"longer than before" * 500)
    assert resolve(folder)["input_fingerprint"] != before


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nowhere", "nowhere: "),
        ("part-{SPAN}", ": no span"),
        ("span-{SPAN}", "not numbered: span-tmp"),
    ],
)
def test_a_missing_folder_or_span_is_an_error_with_its_path(make_voc, tmp_path, place, message):
    for name in ("span-1", "span-tmp"):
        make_voc({"train": ["a"], "val": ["b"]}, name=name)
    with pytest.raises(InputError, match=rf"{tmp_path}.*{message}"):
        resolve(tmp_path / place)


def test_the_driver_selects_the_latest_version_of_the_latest_span(make_voc, tmp_path):
    for span, version in ((1, 9), (2, 1), (10, 1), (10, 2)):
        make_voc({"train": ["a"], "val": ["b"]}, name=f"span-{span}/v{version}")
    resolved = resolve(tmp_path / "span-{SPAN}/v{VERSION}")
    assert (resolved["span"], resolved["version"]) == (10, 2)
    assert json.loads(resolved["data_folders"]) == ["span-10/v2"]


def test_a_rolling_window_lists_the_latest_spans_oldest_first(make_voc, tmp_path):
    for span in ("2026-10-30/1", "2026-11-02/9", "2026-11-02/10", "2026-11-07/1", "2025-01-01/1"):
        make_voc({"train": ["a"], "val": ["b"]}, name=span)
    window, place = replace(VOC, num_spans=3), tmp_path / "{YYYY}-{MM}-{DD}/{VERSION}"
    resolved = resolve(place, window)
    assert json.loads(resolved["data_folders"]) == ["2026-10-30/1", "2026-11-02/10", "2026-11-07/1"]
    (tmp_path / "2026-10-30/1/JPEGImages/a.jpg").write_bytes(b"changed in an old span")
    assert resolve(place, window)["input_fingerprint"] != resolved["input_fingerprint"]
    assert resolve(place, replace(VOC, num_spans=2))["span"] == resolved["span"]


def test_num_spans_without_a_span_placeholder_is_an_error():
    with pytest.raises(InputError, match=r"num_spans: got 2 .*'/data/set'"):
        DetectionExampleGen("/data/set", ExampleGenParams(num_spans=2))


def test_the_fingerprint_covers_annotation_files_below_a_span(make_coco, tmp_path):
    folder = make_coco({"train[1].json": ([{"id": 1, "file_name": "a.jpg"}], [])})
    (tmp_path / "span-7").symlink_to(folder)
    params = ExampleGenParams(format="coco", splits={"train": "train[1].json"})
    before = resolve(tmp_path / "span-{SPAN}", params)["input_fingerprint"]
    (folder / "train[1].json").write_text("another")
    assert resolve(tmp_path / "span-{SPAN}", params)["input_fingerprint"] != before


def test_a_missing_list_file_is_an_error_with_its_path(make_voc, tmp_path):
    folder = make_voc({"train": ["a"]})
    with pytest.raises(InputError, match=r"ImageSets/Main/val\.txt.*split 'eval'"):
        Executor().Do({}, make_artifacts(tmp_path), resolve(folder))


def test_do_sets_the_artifact_properties_and_writes_the_shards_that_downstream_nodes_read(make_voc, tmp_path):
    folder = make_voc({"train": ["a", "b"], "val": ["c"]})
    outputs = make_artifacts(tmp_path)
    Executor().Do({}, outputs, resolve(folder))
    (examples,), (rejects,) = outputs["examples"], outputs["rejects"]
    assert artifact_utils.decode_split_names(examples.split_names) == ["train", "eval"]
    assert examples.get_string_custom_property("payload_format") == "FORMAT_TF_EXAMPLE"
    split_uri = Path(artifact_utils.get_split_uri([examples], "eval"))
    assert [path.name for path in split_uri.iterdir()] == ["data_tfrecord-00000-of-00001"]
    assert sorted(path.name for path in Path(examples.uri).iterdir()) == [
        "Split-eval",
        "Split-train",
        "label_map.pbtxt",
    ]
    assert read_label_map(Path(examples.uri) / "label_map.pbtxt").names == ("cat",)
    assert list(read_rejects(Path(rejects.uri))) == []
    tfxio = tfxio_utils.get_split_tfxio([examples], "train", ["test"])

    def check(batches):
        assert sum(batch.num_rows for batch in batches) == 2

    with beam.Pipeline() as pipeline:
        assert_that(pipeline | tfxio.BeamSource(), check)


def test_do_ingests_the_spans_of_a_window_together(make_voc, tmp_path, without_beam):
    for span in (1, 2, 3):
        make_voc({"train": [f"a{span}"], "val": [f"z{span}"]}, name=f"span-{span}")
    Executor().Do({}, make_artifacts(tmp_path), resolve(tmp_path / "span-{SPAN}", replace(VOC, num_spans=2)))
    report = json.loads((tmp_path / "gen/rejects/1/report.json").read_text())
    assert (report["subfolders"], report["num_written"]) == (["span-2", "span-3"], 4)


def test_a_failed_ingestion_keeps_its_rejects_outside_the_artifact(make_voc, tmp_path, without_beam):
    folder = make_voc({"train": ["a", "b"], "val": ["c"]})
    (folder / "JPEGImages/a.jpg").unlink()
    with pytest.raises(InputError, match=rf"All rejects: {tmp_path}/gen/failed/rejects/1"):
        Executor().Do({}, make_artifacts(tmp_path), resolve(folder))
    (reject,) = read_rejects(tmp_path / "gen/failed/rejects/1")
    assert reject.file == "JPEGImages/a.jpg"
