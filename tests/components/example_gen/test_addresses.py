"""Ingestion with addresses only, as on Dataflow, whose workers see no local folder."""

import apache_beam as beam
import tensorflow as tf

from detloom.components.example_gen.ingest import IngestFolders, ingest
from detloom.components.example_gen.params import ExampleGenParams


def test_ingestion_between_addresses_writes_the_same_bytes_as_a_local_one(ram_folder, copy_folder, make_voc, tmp_path):
    folder = make_voc({"train": [f"a{number}" for number in range(8)], "eval": ["b1", "b2"]})
    params = ExampleGenParams(format="voc", splits={"train": "train", "eval": "eval"})

    def make_pipeline():
        return beam.Pipeline(runner="DirectRunner")

    ingest(folder, params, IngestFolders(str(tmp_path / "out"), str(tmp_path / "rejects")), make_pipeline)
    source, out, rejects = copy_folder(folder, f"{ram_folder}/data"), f"{ram_folder}/out", f"{ram_folder}/rejects"
    report = ingest(source, params, IngestFolders(out, rejects), make_pipeline)
    assert (report["num_written"], report["error"]) == (10, "")
    written = sorted(path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert sum(path.name.startswith("data_tfrecord") for path in written) >= 2
    for path in written:
        with tf.io.gfile.GFile(f"{out}/{path.as_posix()}", "rb") as file:
            assert file.read() == (tmp_path / "out" / path).read_bytes(), path
    assert not tf.io.gfile.exists(f"{out}/.incomplete")
