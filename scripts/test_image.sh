#!/usr/bin/env bash
# Build the image of this checkout, and run the demo's compiled job for Kubeflow in it, one container per task, up to the
# pushed model. Not part of CI: needs podman or docker, a base image (see the variables of scripts/image_build.sh) and 8 GB.
# Then run it, and the pipeline of docs/kfp_components.md, with the KFP SDK's local runner, in a separate environment in
# build/, because TFX 1.16 requires an older kfp.
# Arguments are passed to pytest.
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
