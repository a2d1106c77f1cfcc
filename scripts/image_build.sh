#!/usr/bin/env bash
# Build detloom's image with podman, or with docker if there is no podman. Print the tag at the end.
#
#   IMAGE=...                             its name; default: localhost/detloom:VERSION-tfxLINE[-gpu|-tpu|-beam]
#   TFX_LINE=1.21 | 1.16                  default: that of .venv, whose commands compile the jobs; without one, 1.21
#   BASE_IMAGE ACCELERATOR EXTRAS RUN_AS BEAM_IMAGE     see the Dockerfile; the line decides on the two images
#   TARGET=image | beam                   beam: a worker of Dataflow or Flink
#   TPU_RUNTIME=pjrt | stream-executor    with ACCELERATOR=tpu: for TPU v5e, the default, or for TPU v2, v3 and v4
#   LIBTPU LIBTPU_SHA256                  see Dockerfile.tpu
#   IMAGE_PIP_CONF=file IMAGE_CA_BUNDLE=file   a pip.conf and certificates for pip; neither becomes part of the image
#   ENGINE=podman | docker   IMAGE_BUILD_ARGS="..."              more arguments for it, such as --network host
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

ENGINE=${ENGINE:-$(command -v podman >/dev/null && echo podman || echo docker)}
TARGET=${TARGET:-image}
ACCELERATOR=${ACCELERATOR:-cpu}
. scripts/tfx_lines.sh
TFX_LINE=$(line_of_images)
BASE_IMAGE=${BASE_IMAGE:-$(base_image_of_line "$TFX_LINE")}
BEAM_IMAGE=${BEAM_IMAGE:-$(beam_image_of_line "$TFX_LINE")}
LIBTPU_VERSION=$(libtpu_of_line "$TFX_LINE")
TPU_RUNTIME=${TPU_RUNTIME:-pjrt}
case $TPU_RUNTIME in pjrt | stream-executor) ;; *)
    echo "image: TPU_RUNTIME: got '$TPU_RUNTIME', allowed: pjrt, stream-executor." >&2
    exit 2
    ;;
esac
if [ "$ACCELERATOR" = tpu ] && [ -z "$LIBTPU_VERSION" ]; then
    echo "image: ACCELERATOR=tpu: TensorFlow has no build for TPUs of the version that TFX $TFX_LINE needs; use TFX_LINE=1.16" \
        "for this image, and for the .venv that compiles its jobs." >&2
    exit 2
fi
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' detloom/__init__.py)
revision=$(git rev-parse HEAD 2>/dev/null || true)
[ -z "$revision" ] || git diff --quiet HEAD || revision+=-changed

kind=
[ "$ACCELERATOR" = cpu ] || kind+=-$ACCELERATOR
[ "$TARGET" = image ] || kind+=-$TARGET
IMAGE=${IMAGE:-localhost/detloom:$version-tfx$TFX_LINE$kind}

arguments=(--build-arg "TFX_LINE=$TFX_LINE" --build-arg "ACCELERATOR=$ACCELERATOR"
    --build-arg "VERSION=$version" --build-arg "REVISION=$revision")
for name in BASE_IMAGE BEAM_IMAGE EXTRAS RUN_AS; do
    [ -z "${!name:-}" ] || arguments+=(--build-arg "$name=${!name}")
done
[ -z "${IMAGE_PIP_CONF:-}" ] || arguments+=(--secret "id=pip_conf,src=$IMAGE_PIP_CONF")
[ -z "${IMAGE_CA_BUNDLE:-}" ] || arguments+=(--secret "id=ca_bundle,src=$IMAGE_CA_BUNDLE")
read -r -a more <<<"${IMAGE_BUILD_ARGS:-}"

export DOCKER_BUILDKIT=1 # older docker's own builder knows no secrets
if [ "$ACCELERATOR" = tpu ] && [ "$TARGET" = image ]; then
    "$ENGINE" build "${arguments[@]}" "${more[@]}" --target image --tag "$IMAGE-packages" .
    arguments=(--build-arg "DETLOOM_IMAGE=$IMAGE-packages")
    for name in LIBTPU_VERSION LIBTPU LIBTPU_SHA256 RUN_AS; do
        [ -z "${!name:-}" ] || arguments+=(--build-arg "$name=${!name}")
    done
    "$ENGINE" build "${arguments[@]}" "${more[@]}" --file Dockerfile.tpu --target "$TPU_RUNTIME" --tag "$IMAGE" .
else
    "$ENGINE" build "${arguments[@]}" "${more[@]}" --target "$TARGET" --tag "$IMAGE" .
fi
echo "$IMAGE"
