#!/usr/bin/env bash
# Run tests/flink on the first TFX line: the Python workers and the commands run in the Debian 13 folder that
# scripts/test_debian13.sh has built, with its .venv and this checkout; Flink's Java runs on this machine.
# Arguments go to pytest. Everything is mounted in the namespaces of the cluster and ends with it.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
cache=${XDG_CACHE_HOME:-$HOME/.cache}
tree=${DEBIAN13_DIR:-$cache/detloom/debian13}/tree
python=/src/detloom/.venv/bin/python # inside the tree

if [ "${1:-}" = _enter ]; then # the rest is a command for the tree; called inside the cluster's namespaces
    shift
    exec 9>"$cache/detloom/flink/.entering"
    flock 9
    if [ ! -e "$tree/proc/self" ]; then
        mount -t proc proc "$tree/proc"
        for path in /dev /tmp "$here" "$cache/detloom/flink" ${BCCD_DIR:+"$BCCD_DIR"}; do
            mkdir -p "$tree$path"
            mount --rbind "$path" "$tree$path"
        done
    fi
    exec 9>&-
    exec chroot "$tree" env --chdir="$here" HOME=/src XDG_CACHE_HOME="$cache" "$@"
fi

if [ ! -d "$tree$(dirname "$python")" ]; then
    echo "test-flink-debian13: needs the Debian 13 folder of scripts/test_debian13.sh; make test-debian13 ARGS=venv builds it." >&2
    exit 1
fi
exec "$here/.venv/bin/python" "$here/scripts/flink_cluster.py" run --enter "bash $here/scripts/test_flink_debian13.sh _enter" \
    --python "$python" -- "$python" -m pytest -v -p no:cacheprovider -m flink --durations=0 --timeout 3600 \
    tests/flink "$@"
