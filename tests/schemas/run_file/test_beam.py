from typing import get_args

import pytest

from detloom.schemas.errors import InputError
from detloom.schemas.run_file.beam import Beam, BeamNode, Dataflow, Flink

DATAFLOW = Dataflow(
    project="my-project", region="us-central1", temp_location="gs://bucket/tmp", worker_image="r/beam:1"
)


def test_exactly_one_runner_is_required():
    assert Beam(dataflow=DATAFLOW).nodes == ("StatisticsGen", "DetectionEvaluator")
    for values in ({}, {"dataflow": DATAFLOW, "flink": Flink(master="flink:8081")}):
        with pytest.raises(InputError, match=r"dataflow: got .*allowed: one of the two"):
            Beam(**values)


def test_every_node_can_run_on_dataflow():
    assert Beam(nodes=get_args(BeamNode), dataflow=DATAFLOW).nodes == get_args(BeamNode)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"master": "flink"}, r"master: got 'flink', allowed: host:port"),
        ({"master": "flink:8081", "parallelism": 0}, r"parallelism: got 0, allowed: 1 or more"),
        (
            {"master": "flink:8081", "environment_type": "DOCKER", "environment_config": ""},
            r"environment_config: got nothing, allowed: .*DOCKER",
        ),
    ],
)
def test_invalid_flink_settings_are_rejected(values, message):
    with pytest.raises(InputError, match=message):
        Flink(**values)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("project", "", r"project: got nothing"),
        ("region", "", r"region: got nothing"),
        ("worker_image", "", r"worker_image: got nothing, allowed: an image built with the target `beam`"),
        ("temp_location", "/tmp", r"temp_location: got '/tmp', allowed: a folder at gs://"),
        ("temp_location", "gs://", r"temp_location: got 'gs://'"),
        ("max_workers", 0, r"max_workers: got 0"),
    ],
)
def test_invalid_dataflow_settings_are_rejected(field, value, message):
    with pytest.raises(InputError, match=message):
        Dataflow(**{**vars(DATAFLOW), field: value})


def test_duplicate_nodes_are_rejected():
    with pytest.raises(InputError, match=r"nodes: got \['StatisticsGen', 'StatisticsGen'\], allowed: at least one"):
        Beam(nodes=("StatisticsGen", "StatisticsGen"), dataflow=DATAFLOW)
