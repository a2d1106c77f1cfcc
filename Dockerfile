# detloom's image, in which every node of a compiled pipeline runs. `make image` builds it with podman or docker (BuildKit).
#
#   TFX_LINE     1.21 or 1.16: the file of constraints/ that pins the packages
#   BASE_IMAGE   Debian or Ubuntu with a python3 that the TFX line supports: 3.10 to 3.13, and glibc 2.38 or newer, for
#                1.21; 3.10 for 1.16. scripts/image_base.sh makes one if none can be pulled.
#   ACCELERATOR  cpu, gpu (adds NVIDIA's libraries), tpu (TensorFlow's TPU build, which the version of TFX 1.21 does not
#                have; Dockerfile.tpu continues from it)
#   EXTRAS       detloom's optional dependencies: onnx
#   RUN_AS       the user id; 0 only if a platform requires root
#   BEAM_IMAGE   the source of Apache Beam's boot program for the target `beam`: the SDK image for the Python and Beam
#                versions
#
# Two optional secrets, which do not become part of the image or its history: pip_conf (a pip.conf, for example with your
# own package index) and ca_bundle (certificates; use them by `cert = /run/secrets/ca_bundle` in the pip.conf).
ARG BASE_IMAGE=docker.io/library/python:3.13-slim-trixie
ARG BEAM_IMAGE=docker.io/apache/beam_python3.13_sdk:2.77.0

# --- packages: compiled and installed here; only the result is used below ---
FROM ${BASE_IMAGE} AS packages
ARG TFX_LINE=1.21
ARG ACCELERATOR=cpu
ARG EXTRAS=""
ENV PATH=/opt/detloom/venv/bin:${PATH}
WORKDIR /build

# g++: pyfarmhash has no wheel. Debian's python3 has its headers in a separate package.
# hadolint ignore=DL3008
RUN set -eu; \
    set -- g++; \
    include=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))'); \
    [ -e "${include}/Python.h" ] || set -- "$@" python3-dev; \
    apt-get update; \
    apt-get install -y --no-install-recommends "$@"; \
    rm -rf /var/lib/apt/lists/*

COPY constraints/*-${TFX_LINE}.txt ./

# The build tools come first, then no isolation, as in scripts/setup_venv.sh. The files have the hashes of all packages. TensorFlow
# gets a layer of its own, half of the total size, so that two layers are pulled in parallel. The copy without hashes is for
# `pip install --constraint` in images that add packages to this one.
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf --mount=type=secret,id=ca_bundle \
    set -eu; \
    python3 -m venv /opt/detloom/venv; \
    install() { \
        pip install --no-cache-dir --progress-bar off --no-build-isolation --no-deps --require-hashes --requirement "$1"; \
    }; \
    awk '/^[^ ]/ {is_one = /^(setuptools|wheel)==/} is_one' "tfx-${TFX_LINE}.txt" > build-tools.txt; \
    install build-tools.txt; \
    for name in tfx $(echo "${EXTRAS}" | tr , ' '); do install "${name}-${TFX_LINE}.txt"; done; \
    pip check; \
    [ "${ACCELERATOR}" = cpu ] || install "${ACCELERATOR}-${TFX_LINE}.txt"; \
    mkdir /opt/detloom/constraints; \
    sed -n 's/^\([^ #].*\) \\$/\1/p' "tfx-${TFX_LINE}.txt" > "/opt/detloom/constraints/tfx-${TFX_LINE}.txt"; \
    site=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'); \
    mkdir -p "/tensorflow${site}"; \
    for package in tensorflow nvidia; do \
        if [ -d "${site}/${package}" ]; then mv "${site}/${package}" "/tensorflow${site}/"; fi; \
    done

# --- sbom: a list of the packages above in CycloneDX's format, without Debian's ---
FROM packages AS sbom
COPY constraints/tools.txt ./
RUN --mount=type=secret,id=pip_conf,target=/etc/pip.conf --mount=type=secret,id=ca_bundle \
    python3 -m venv /tmp/tools \
    && /tmp/tools/bin/pip install --no-cache-dir --progress-bar off --no-deps --require-hashes --requirement tools.txt \
    && /tmp/tools/bin/cyclonedx-py environment --of JSON --output-reproducible --output-file /opt/detloom/sbom.json \
        /opt/detloom/venv/bin/python

# --- wheel: detloom itself ---
FROM packages AS wheel
WORKDIR /source
COPY LICENSE README.md MANIFEST.in pyproject.toml setup.py ./
COPY detloom detloom
COPY schemas schemas
COPY trainer_module trainer_module
COPY components components
COPY pipelines pipelines
RUN pip wheel --no-cache-dir --no-deps --no-build-isolation --no-index --wheel-dir /opt/detloom/dist .

# --- image: no compiler, no source, no cache ---
FROM ${BASE_IMAGE} AS image
ARG RUN_AS=1000
# GKE and Vertex AI mount NVIDIA's driver at /usr/local/nvidia and set neither path; elsewhere this folder does not exist.
# Source: cmd/nvidia_gpu/nvidia_gpu.go of GoogleCloudPlatform/container-engine-accelerators.
ENV PATH=/opt/detloom/venv/bin:${PATH}:/usr/local/nvidia/bin \
    LD_LIBRARY_PATH=/usr/local/nvidia/lib64 \
    VIRTUAL_ENV=/opt/detloom/venv \
    HOME=/home/detloom \
    USER=detloom \
    PYTHONUNBUFFERED=1

# The user is 1000 in group 0, and writable folders belong to that group, so that the image works with any user id, such
# as OpenShift's. USER above is the result of getpass if the id has no name. The launcher of Kubeflow Pipelines keeps its
# copy of the object store in /gcs, /minio and /s3; later releases mount folders there. --non-unique: Ubuntu's images have
# a user 1000 since 23.04.
RUN useradd --non-unique --uid 1000 --gid 0 --no-log-init --no-create-home --home-dir /home/detloom --shell /bin/sh \
        detloom \
    && install -d -o 1000 -g 0 -m 775 /home/detloom /gcs /minio /s3
COPY --from=packages /tensorflow /
COPY --from=packages /opt/detloom /opt/detloom
# The path of NVIDIA's other libraries, if installed: in the loader's list instead of LD_LIBRARY_PATH, which is the driver's
# and which a platform may set.
RUN find /opt/detloom/venv/lib/python3*/site-packages/nvidia -type d -name lib -print \
        > /etc/ld.so.conf.d/detloom-nvidia.conf 2> /dev/null || true \
    && ldconfig

COPY --from=sbom /opt/detloom/sbom.json /opt/detloom/sbom.json
COPY --from=wheel /opt/detloom/dist /opt/detloom/dist
RUN pip install --no-cache-dir --no-deps --no-index /opt/detloom/dist/*.whl

USER ${RUN_AS}
WORKDIR /home/detloom
# Every platform sets the command itself.
ENTRYPOINT []
CMD ["detloom", "--help"]

ARG BASE_IMAGE
ARG TFX_LINE=1.21
ARG ACCELERATOR=cpu
ARG VERSION=""
ARG REVISION=""
LABEL org.opencontainers.image.title="detloom" \
    org.opencontainers.image.description="Retrain object detectors in production with TFX ${TFX_LINE} (${ACCELERATOR})" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.base.name="${BASE_IMAGE}"

# --- beam: a worker of Dataflow or of Flink's worker pool; `--target beam` ---
# Beam's guide to custom containers: any image with the SDK and its boot program as entry point. It runs as root, as
# Beam's images do, because boot installs the packages that a job stages (apache/beam, sdks/python/container/boot.go).
FROM ${BEAM_IMAGE} AS beam-sdk
FROM image AS beam
COPY --from=beam-sdk /opt/apache/beam /opt/apache/beam
# Otherwise boot makes a new environment without our packages.
ENV RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1
# hadolint ignore=DL3002
USER 0
ENTRYPOINT ["/opt/apache/beam/boot"]
CMD []

# --- the default target of `docker build` ---
FROM image
