import inspect
import re
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from detloom.pipelines.local import forked_workers

_SQUARES = """
import os, sys
import apache_beam as beam
from detloom.pipelines.local.beam_pipelines import pipeline_maker
def work(number):
    if number == int(sys.argv[2]):
        raise ValueError("number refused")
    with open(f"{sys.argv[1]}/{os.getpid()}", "w") as file:
        file.write(str(os.getppid()))
with pipeline_maker(2, ())() as pipeline:
    pipeline | beam.Create(range(8)) | beam.Reshuffle() | beam.Map(work)
print(os.getpid(), flush=True)
"""


def test_a_process_with_another_thread_is_not_forked():
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert not forked_workers._can_fork()
    finally:
        stop.set()
        thread.join()


def test_a_temporary_folder_with_a_long_path_is_not_used(tmp_path, monkeypatch):
    """The path of a socket has at most 107 bytes."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    monkeypatch.setattr(forked_workers, "_can_fork", lambda: True)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    assert forked_workers._start_server.__wrapped__() == ""
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_workers_are_forked_and_end_with_the_main_process(tmp_path):
    done = subprocess.run([sys.executable, "-c", _SQUARES, tmp_path, "-1"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    servers = {int(path.read_text()) for path in tmp_path.iterdir()}
    processes = {int(path.name) for path in tmp_path.iterdir()} | servers
    assert len(servers) == 1
    assert int(done.stdout) not in processes
    for _ in range(100):
        running = [process for process in processes if _is_running(process)]
        if not running:
            break
        time.sleep(0.05)
    assert running == []


@pytest.mark.slow
def test_an_error_of_a_forked_worker_fails_the_pipeline(tmp_path):
    done = subprocess.run([sys.executable, "-c", _SQUARES, tmp_path, "3"], capture_output=True, text=True)
    assert done.returncode != 0
    assert "number refused" in done.stderr


def test_ports_for_workers_are_bound_to_this_machine(monkeypatch):
    from apache_beam.runners.portability import local_job_service
    from apache_beam.runners.portability.fn_api_runner import worker_handlers

    bound = []
    fake = SimpleNamespace(add_insecure_port=lambda address: bound.append(address) or 1)
    monkeypatch.setattr("grpc.server", lambda *_, **__: fake)
    for module in (worker_handlers, local_job_service):
        monkeypatch.setattr(module, "grpc", module.grpc)
    forked_workers._listen_on_this_machine_only.__wrapped__()
    for module in (worker_handlers, local_job_service):
        addresses = re.findall(r"add_insecure_port\('(.*?)'\)", inspect.getsource(module))
        assert addresses, f"{module.__name__} binds its ports in another way"
        for address in addresses:
            module.grpc.server().add_insecure_port(address)
    assert set(bound) == {"127.0.0.1:0"}


def _is_running(process: int) -> bool:
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
