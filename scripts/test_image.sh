#!/usr/bin/env bash
# Builds the image of this checkout and runs the demo's compiled job for Kubeflow in it, one container a task, up to the
# pushed model. Outside CI: needs podman or docker, a base image (scripts/image_build.sh takes the same variables) and 8 GB.
# Then the same with the KFP SDK's local runner, from an environment of its own in build/: TFX 1.16 holds an older kfp.
# Arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export IMAGE=${IMAGE:-localhost/detloom:test}
start=$SECONDS
bash scripts/image_build.sh
echo "test-image: image: $((SECONDS - start)) s"
start=$SECONDS
. scripts/own_pip_settings.sh
kfp=build/kfp-local
if ! "$kfp/bin/python" -c 'import docker, kfp' 2>/dev/null; then
    rm -rf "$kfp"
    .venv/bin/python -m venv "$kfp"
    "$kfp/bin/python" -m pip install --quiet kfp==2.17.0 docker==7.2.0
fi
DETLOOM_KFP_PYTHON=$PWD/$kfp/bin/python DETLOOM_TEST_IMAGE=$IMAGE .venv/bin/pytest -m proof tests/conformance/test_in_containers.py "$@"
echo "test-image: tests: $((SECONDS - start)) s"
