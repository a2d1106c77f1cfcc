"""ML Metadata that a killed process wrote, on a full or read-only disk."""

import os
import signal
import time

import ml_metadata as mlmd
import pytest
from ml_metadata.proto import metadata_store_pb2 as pb

from detloom.pipelines.lineage.metadata_file import check_metadata_file
from detloom.pipelines.lineage.store import LineageStore
from detloom.pipelines.local.supervise import hold_workspace
from detloom.schemas.errors import InputError

URI = f"/models/{'m' * 500}"


def open_store(path):
    config = pb.ConnectionConfig()
    config.sqlite.filename_uri = str(path)
    config.sqlite.connection_mode = pb.SqliteMetadataSourceConfig.READWRITE_OPENCREATE
    return mlmd.MetadataStore(config)


def write(store, num_artifacts):
    """Write artifacts in one transaction."""
    kind = store.put_artifact_type(pb.ArtifactType(name="Model"))
    store.put_artifacts([pb.Artifact(type_id=kind, uri=URI) for _ in range(num_artifacts)])


def count(path):
    return len(LineageStore(path).models_at(URI))


@pytest.mark.reliability("kill", "metadata")
@pytest.mark.parametrize("is_written", [True, False])
def test_metadata_of_a_killed_process_are_intact_and_contain_whole_transactions(tmp_path, is_written):
    path = tmp_path / "metadata.sqlite"
    write(open_store(path), 10)
    for number in (1, 3):
        child = os.fork()
        if child == 0:
            store = open_store(path)
            while True:
                write(store, 5000)
        time.sleep(0.1 + 0.07 * number)
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        check_metadata_file(path, is_written=is_written)
        assert count(path) % 5000 == 10


@pytest.mark.reliability("full disk", "metadata")
def test_metadata_on_a_full_disk_keep_the_earlier_entries_and_accept_new_ones_later(disk):
    path = disk.folder / "metadata.sqlite"
    store = open_store(path)
    write(store, 10)
    disk.fill(200_000)
    with pytest.raises((mlmd.errors.StatusError, RuntimeError), match="disk is full"):
        write(store, 5000)
    check_metadata_file(path, is_written=False)
    assert count(path) == 10
    disk.empty()
    write(open_store(path), 20)
    assert count(path) == 30


@pytest.mark.reliability("read-only", "metadata")
def test_metadata_on_a_read_only_disk_can_be_read_and_a_run_there_is_refused(disk):
    path = disk.folder / "metadata.sqlite"
    write(open_store(path), 10)
    disk.make_read_only()
    check_metadata_file(path, is_written=False)
    assert count(path) == 10
    with pytest.raises(InputError, match=str(path)):
        check_metadata_file(path, is_written=True)
    with pytest.raises(InputError, match="Read-only file system"), hold_workspace(disk.folder):
        pass
