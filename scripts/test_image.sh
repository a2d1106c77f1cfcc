#!/usr/bin/env bash
# Builds the image of this checkout and runs the demo's compiled job for Kubeflow in it, one container a task, up to the
# pushed model. Outside CI: needs podman or docker, a base image (scripts/image_build.sh takes the same variables) and 8 GB.
# Arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export IMAGE=${IMAGE:-localhost/detloom:test}
start=$SECONDS
bash scripts/image_build.sh
echo "test-image: image: $((SECONDS - start)) s"
start=$SECONDS
DETLOOM_TEST_IMAGE=$IMAGE .venv/bin/pytest -m slow tests/conformance/test_in_containers.py "$@"
echo "test-image: tests: $((SECONDS - start)) s"
