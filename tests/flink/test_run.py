"""`detloom run` with all four Beam nodes on Flink gives the bytes of the direct runner, also if workers are lost."""

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from flink_access import Cluster, read_files, run_detloom, start_detloom, wait_for
from small_demo import SMALL
from tensorflow_metadata.proto.v0 import statistics_pb2

from detloom.pipelines.samples.sample_run_file import sample_run_file

pytestmark = [pytest.mark.flink, pytest.mark.timeout(3000)]
# All but pages and measured times, which differ between any two runs.
RESULTS = {
    "DetectionExampleGen": ("examples", "rejects"),
    "StatisticsGen": ("statistics",),
    "DatasetValidator": ("report",),
    "DetectionEvaluator": ("evaluation",),
}
NO_POOL = "localhost:5555"
STATISTICS = "FeatureStats.pb"
VARYING = ("analysis.json", "report.html", "tfevents")


def arguments(workspace: Path, *changes: str) -> list[str]:
    settings = [word for change in (*SMALL, *changes) for word in ("--set", change)]
    return ["run", str(sample_run_file("demo")), "--workspace", str(workspace), *settings]


def on_flink(cluster: Cluster) -> str:
    return f"beam_args={json.dumps(cluster.beam_args())}"


def results(workspace: Path) -> dict[str, bytes]:
    found = {}
    for node, outputs in RESULTS.items():
        for output in outputs:
            (artifact,) = (workspace / "artifacts" / node / output).iterdir()
            for name, content in read_files(artifact).items():
                if not any(part in name for part in VARYING):
                    content = sort_features(content) if name.endswith(STATISTICS) else content
                    found[f"{node}/{output}/{name}"] = content.replace(str(workspace).encode(), b"")
    return found


def sort_features(content: bytes) -> bytes:
    """Return statistics with sorted features, whose order depends on the runner."""
    statistics = statistics_pb2.DatasetFeatureStatisticsList.FromString(content)
    for dataset in statistics.datasets:
        dataset.features.sort(key=lambda feature: list(feature.path.step))
    return statistics.SerializeToString(deterministic=True)


def current_node(log: Path) -> str:
    """Return the node that a run began last, or ""."""
    begun = re.findall(r"^\[\d+/\d+\] (\w+)$", log.read_text(), re.MULTILINE)
    return begun[-1] if begun else ""


def kill_a_busy_python_worker(cluster: Cluster, process: subprocess.Popen[bytes]) -> None:
    """Kill the workers that connect until the job restarts: a job has several in a row, and some have nothing to do."""
    before = cluster.num_restarts()

    def restarted() -> bool:
        cluster.kill_python_worker()
        return cluster.num_restarts() > before

    wait_for(restarted, process)


@pytest.fixture(scope="module")
def results_here(tmp_path_factory) -> Iterator[dict[str, bytes]]:
    workspace = tmp_path_factory.mktemp("here")
    run_detloom(workspace / "log", *arguments(workspace))
    return results(workspace)


def check_same(there: dict[str, bytes], here: dict[str, bytes]) -> None:
    assert sorted(there) == sorted(here)
    assert [name for name in here if there[name] != here[name]] == []
    for expected in ("data_tfrecord", STATISTICS, "report/report.json", "metrics.json", "detections.json"):
        assert any(expected in name for name in here), expected


def test_all_nodes_give_the_same_results(cluster, tmp_path, results_here):
    run_detloom(tmp_path / "log", *arguments(tmp_path, on_flink(cluster)))
    check_same(results(tmp_path), results_here)


def test_a_node_whose_job_fails_is_one_sentence(cluster, tmp_path):
    entry = {"node": "StatisticsGen", "beam_args": cluster.beam_args(environment_config=NO_POOL)}
    log = run_detloom(tmp_path / "log", *arguments(tmp_path, f"nodes={json.dumps([entry])}"), code=1)
    assert log.splitlines()[-1].startswith("error: StatisticsGen failed: the Beam job ended in state FAILED: ")
    assert NO_POOL.partition(":")[2] in log.splitlines()[-1]
    assert "Traceback" not in log
    assert "\tat " not in log


def test_workers_that_are_killed_in_each_node_change_nothing(cluster, tmp_path, results_here):
    before = cluster.num_restarts()
    process = start_detloom(tmp_path / "log", *arguments(tmp_path, on_flink(cluster)))
    victims = {
        "DetectionExampleGen": "task manager",
        "DatasetValidator": "Python worker",
        "StatisticsGen": "task manager",
        "DetectionEvaluator": "Python worker",
    }
    for node, victim in victims.items():  # in the order of the run
        wait_for(lambda node=node: current_node(tmp_path / "log") == node, process)
        wait_for(cluster.has_python_worker, process)
        time.sleep(1)
        assert current_node(tmp_path / "log") == node
        if victim == "task manager":
            cluster.kill_task_manager()
        else:
            kill_a_busy_python_worker(cluster, process)
        cluster.wait_until_complete()
    assert process.wait(1200) == 0, (tmp_path / "log").read_text()
    assert cluster.num_restarts() >= before + len(victims)
    check_same(results(tmp_path), results_here)
