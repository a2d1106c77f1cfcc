"""Ingestion on Flink writes the bytes of the direct runner, also if a worker is lost; failures are one sentence."""

import os

import pytest
from flink_access import read_files, run_detloom, start_detloom, wait_for

pytestmark = [pytest.mark.flink, pytest.mark.timeout(1800)]
SMALL_SHARDS = ("--shard-max-bytes", "1000000")  # so that some are complete, and others not, when a worker is killed


def ingest_here(data, out):
    run_detloom(out.with_suffix(".log"), "ingest", "--input", str(data), "--output", str(out), *SMALL_SHARDS)
    return read_files(out)


def arguments(cluster, data, out, **changes):
    options = ["ingest", "--input", str(data), "--output", str(out), *SMALL_SHARDS]
    return [*options, "--", *cluster.beam_args(**changes)]


@pytest.fixture(scope="module")
def ingested_here(large_folder, tmp_path_factory):
    return ingest_here(large_folder, tmp_path_factory.mktemp("here") / "out")


def test_ingestion_writes_the_same_bytes(cluster, data_folder, tmp_path):
    run_detloom(tmp_path / "log", *arguments(cluster, data_folder, tmp_path / "out"))
    there = read_files(tmp_path / "out")
    assert there == ingest_here(data_folder, tmp_path / "here")
    assert sum("data_tfrecord" in name for name in there) >= 3


@pytest.mark.parametrize("victim", ["task manager", "Python worker"])
def test_a_worker_that_is_killed_midway_changes_no_byte(cluster, large_folder, tmp_path, ingested_here, victim):
    before = cluster.num_restarts(), cluster.num_lost_task_managers()
    process = start_detloom(tmp_path / "log", *arguments(cluster, large_folder, tmp_path / "out"))
    finished = tmp_path / "out/.incomplete/finished/train"
    half = sum(name.startswith("Split-train/") for name in ingested_here) // 2
    wait_for(lambda: finished.is_dir() and len(os.listdir(finished)) >= half, process)
    if victim == "task manager":
        cluster.kill_task_manager()
    else:
        cluster.kill_python_worker()
    assert process.wait(900) == 0, (tmp_path / "log").read_text()
    assert read_files(tmp_path / "out") == ingested_here
    log = (tmp_path / "log").read_text()
    assert log.count("starts the ingestion again; progress begins at zero") == 1
    assert cluster.num_restarts() > before[0]
    assert cluster.num_lost_task_managers() == before[1] + (victim == "task manager")


def test_a_command_that_is_terminated_cancels_its_job(cluster, large_folder, tmp_path):
    process = start_detloom(tmp_path / "log", *arguments(cluster, large_folder, tmp_path / "out"))
    wait_for(cluster.has_python_worker, process)
    process.terminate()
    assert process.wait(60) == 143, (tmp_path / "log").read_text()  # 128 + SIGTERM
    wait_for(lambda: cluster.newest_job_state() == "CANCELED")


def test_a_job_that_fails_is_one_sentence(cluster, data_folder, tmp_path):
    nowhere = arguments(cluster, data_folder, tmp_path / "out", environment_config="localhost:5555")
    log = run_detloom(tmp_path / "log", *nowhere, code=1)
    assert log.splitlines()[-1].startswith("error: the Beam job ended in state FAILED: ")
    assert "localhost/127.0.0.1:5555; a pool of Python workers has to run" in log
    assert "Traceback" not in log
    assert "\tat " not in log


def test_a_rest_server_that_does_not_answer_is_one_sentence(cluster, data_folder, tmp_path):
    nowhere = arguments(cluster, data_folder, tmp_path / "out", master="localhost:5556")
    log = run_detloom(tmp_path / "log", *nowhere, code=1)
    assert "error: Flink's REST server at http://localhost:5556 does not answer (Connection refused)" in log
    assert "Traceback" not in log
