"""Kill ingestion at many points and run it again: the same bytes, and no partial file under a final name."""

import pytest
from faults import read_visible, stop_at_every_step


@pytest.mark.slow  # some hundred ingestions
@pytest.mark.reliability("kill", "ingest")
def test_a_killed_ingestion_leaves_no_partial_file_and_its_rerun_gives_the_same_bytes(make_voc, tmp_path, run_ingest):
    folder = make_voc({"train": [f"i{n}" for n in range(12)], "val": [f"i{n}" for n in range(12, 24)]})
    for name in ("i0", "i5", "i20"):
        (folder / f"JPEGImages/{name}.jpg").write_bytes(b"damaged")

    def ingest(out):
        run_ingest(folder, out, shard_max_bytes=20_000, max_reject_fraction=1.0)

    out, num_runs, kill_at = tmp_path / "out", 0, 0
    ingest(tmp_path / "whole")
    expected = read_visible(tmp_path / "whole")
    assert len([name for name in expected if "/data_tfrecord-" in name]) >= 4
    for kill_at in stop_at_every_step(out, lambda: ingest(out), every=9):
        found = read_visible(out)
        assert found.items() <= expected.items(), kill_at
        assert "rejects/report.json" not in found or found == expected, kill_at
        num_runs += 1
        if num_runs % 3 == 0:  # the others start on the remains of several kills
            ingest(out)
            assert read_visible(out) == expected, kill_at
            assert not (out / ".incomplete").exists(), kill_at
    assert num_runs > 10  # far fewer would mean that the operations are not observed
    assert read_visible(out) == expected
