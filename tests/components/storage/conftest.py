"""Fixtures: an address in a bucket of each kind, and the bucket."""

import pytest


@pytest.fixture(params=["gs", "s3"])
def root(request):
    return f"{request.param}://bucket/data"


@pytest.fixture
def bucket(root, make_bucket):
    return make_bucket(root[:2])
