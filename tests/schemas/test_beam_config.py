import pytest

from detloom.schemas.beam_config import Beam, Dataflow, Flink
from detloom.schemas.errors import InputError

DATAFLOW = Dataflow(project="my-project", region="us-central1", temp_location="gs://bucket/tmp")


def test_one_place_is_given():
    assert Beam(dataflow=DATAFLOW).nodes == ("StatisticsGen", "DetectionEvaluator")
    for values in ({}, {"dataflow": DATAFLOW, "flink": Flink(master="flink:8081")}):
        with pytest.raises(InputError, match=r"dataflow: got both or neither"):
            Beam(**values)


def test_dataflow_takes_no_node_that_writes_to_folders_only():
    with pytest.raises(InputError, match=r"nodes: got DatasetValidator, whose workers need a folder .*, allowed: the"):
        Beam(nodes=("StatisticsGen", "DatasetValidator"), dataflow=DATAFLOW)
    assert Beam(nodes=("DatasetValidator",), flink=Flink(master="flink:8081"))  # where all see the same folder


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"master": "flink"}, r"master: got 'flink', allowed: host:port"),
        ({"master": "flink:8081", "parallelism": 0}, r"parallelism: got 0, allowed: 1 or more"),
        (
            {"master": "flink:8081", "environment_type": "DOCKER", "environment_config": ""},
            r"environment_config: got nothing, allowed: what DOCKER needs",
        ),
    ],
)
def test_a_flink_that_cannot_be_is_refused(values, message):
    with pytest.raises(InputError, match=message):
        Flink(**values)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("project", "", r"project: got nothing"),
        ("region", "", r"region: got nothing"),
        ("temp_location", "/tmp", r"temp_location: got '/tmp', allowed: a folder at gs://"),
        ("temp_location", "gs://", r"temp_location: got 'gs://'"),
        ("max_workers", 0, r"max_workers: got 0"),
    ],
)
def test_a_dataflow_that_cannot_be_is_refused(field, value, message):
    with pytest.raises(InputError, match=message):
        Dataflow(**{**vars(DATAFLOW), field: value})


def test_a_node_is_named_once():
    with pytest.raises(InputError, match=r"nodes: got \['StatisticsGen', 'StatisticsGen'\], allowed: at least one"):
        Beam(nodes=("StatisticsGen", "StatisticsGen"), dataflow=DATAFLOW)
