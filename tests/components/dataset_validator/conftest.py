"""Tests read shards without Beam, because a Beam run takes longer than the rest of a test."""

import pytest

from detloom.components.dataset_validator.statistics import collect_statistics
from detloom.components.dataset_validator.statistics.collect_statistics import read_shard
from detloom.components.dataset_validator.statistics.pass_result import PassResult


@pytest.fixture
def with_beam():
    """Run the real Beam pipeline in a test that requests this fixture."""


@pytest.fixture(autouse=True)
def _read_shards_in_process(request, monkeypatch):
    def run_pass(shards, known_ids, settings, scratch, make_pipeline):
        merged = PassResult()
        for split, path in shards:
            merged.merge(read_shard(split, path, known_ids, settings))
        return merged

    if "with_beam" not in request.fixturenames:
        monkeypatch.setattr(collect_statistics, "_run_pass", run_pass)
