"""Generated data sets, and the steps of an ingestion that are measured on them."""

import json

import pytest
from tools import made_data_sets
from tools.ingestion_stages import run_stages


@pytest.mark.parametrize("data_format", ["yolo", "coco"])
def test_generated_records_are_valid_and_measured(data_format, tmp_path, monkeypatch):
    monkeypatch.setattr(made_data_sets, "_MAX_LINKS", 20)
    getattr(made_data_sets, f"make_{data_format}")(tmp_path / "data", 50)
    result = run_stages(tmp_path / "data", tmp_path / "out", data_format, plan_only=False)
    assert (result["num_records"], result["num_shards"]) == (50, 2)  # at least 32 records in a shard
    assert list(result["cpu_seconds"]) == list(result["peak_mb"]) == ["list", "divide", "read", "plan", "write"]
    written = [json.loads(path.read_text())["counts"] for path in (tmp_path / "out/.incomplete/written").iterdir()]
    assert sum(counts["num_written"] for counts in written) == 50
    assert sum(counts["num_boxes_written"] for counts in written) == {"yolo": 150, "coco": 350}[data_format]
