#!/usr/bin/env bash
# object_stores.sh COMMAND...: run a command beside an object store with Google's API (gs://bucket, fake-gcs-server) and one
# with the S3 API (s3://bucket, moto), both empty and in memory. Needs Linux, Go, Python, openssl and iproute2.
#
# All of it runs in namespaces of its own: /etc/hosts names this machine as storage.googleapis.com, because TensorFlow has no
# setting for another server, and all servers end with the command. The servers are installed into the user's cache folder.
set -euo pipefail

FAKE_GCS=v1.56.1
MOTO=5.2.5
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/detloom/object_stores

install_servers() {
    mkdir -p "$cache"
    if [ ! -x "$cache/fake-gcs-server-$FAKE_GCS" ]; then
        echo "object-stores: building fake-gcs-server $FAKE_GCS (about five minutes the first time)" >&2
        GOBIN=$cache/bin go install "github.com/fsouza/fake-gcs-server@$FAKE_GCS"
        mv "$cache/bin/fake-gcs-server" "$cache/fake-gcs-server-$FAKE_GCS"
    fi
    if [ ! -x "$cache/moto-$MOTO/bin/moto_server" ]; then
        echo "object-stores: installing moto $MOTO" >&2
        . "$here/own_pip_settings.sh"
        rm -rf "$cache/moto-$MOTO"
        read -r _ _ python <<<"$(bash "$here/find_python.sh")"
        "$python" -I -m venv "$cache/moto-$MOTO"
        "$cache/moto-$MOTO/bin/python" -m pip install --quiet "moto[server]==$MOTO"
    fi
    if [ ! -e "$cache/tls/server.pem" ]; then
        bash "$here/object_store_tls.sh" "$cache/tls"
    fi
}

wait_for() { # URL
    "$cache/moto-$MOTO/bin/python" - "$1" <<'PY'
import sys, time, urllib.error, urllib.request
for _ in range(300):
    try:
        urllib.request.urlopen(sys.argv[1], timeout=1).close()
    except urllib.error.HTTPError:  # it answers
        break
    except OSError:
        time.sleep(0.1)
    else:
        break
else:
    sys.exit(f"object-stores: {sys.argv[1]} does not answer; the logs are in the folder of DETLOOM_OBJECT_STORE_LOGS.")
PY
}

serve_and_run() { # COMMAND...
    local logs python=$cache/moto-$MOTO/bin/python
    logs=${DETLOOM_OBJECT_STORE_LOGS:-$(mktemp -d)}
    mkdir -p "$logs"
    ip link set lo up
    printf '127.0.0.1 localhost\n127.0.0.1 www.googleapis.com storage.googleapis.com\n' >"$logs/hosts"
    mount --bind "$logs/hosts" /etc/hosts
    "$cache/fake-gcs-server-$FAKE_GCS" -scheme http -host 127.0.0.1 -port 4443 -backend memory \
        -external-url http://127.0.0.1:4443 >"$logs/google.log" 2>&1 &
    "$cache/moto-$MOTO/bin/moto_server" -H 127.0.0.1 -p 5000 >"$logs/s3.log" 2>&1 &
    "$python" "$here/object_store_proxy.py" "$cache/tls/server.pem" >"$logs/proxy.log" 2>&1 &
    export NO_PROXY=127.0.0.1,localhost,googleapis.com
    unset HTTP_PROXY HTTPS_PROXY http_proxy https_proxy
    wait_for http://127.0.0.1:4443/storage/v1/b
    wait_for http://127.0.0.1:5000/
    wait_for http://127.0.0.1:8080/
    "$python" - <<'PY'
import urllib.request
json_type = {"Content-Type": "application/json"}
url = "http://127.0.0.1:4443/storage/v1/b?project=test"
urllib.request.urlopen(urllib.request.Request(url, b'{"name": "bucket"}', json_type)).close()
urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:5000/bucket", b"", method="PUT")).close()
PY
    # Google's clients find a token at the metadata server; without one, Beam looks for credentials for 40 s.
    STORAGE_EMULATOR_HOST=http://127.0.0.1:4444 GCE_METADATA_HOST=127.0.0.1:8080 GCE_METADATA_IP=127.0.0.1:8080 \
        NO_GCE_CHECK=true CURL_CA_BUNDLE=$cache/tls/ca.pem \
        AWS_ENDPOINT_URL_S3=http://127.0.0.1:5000 AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test \
        AWS_DEFAULT_REGION=us-east-1 AWS_EC2_METADATA_DISABLED=true DETLOOM_TEST_BUCKETS="gs://bucket s3://bucket" "$@"
}

case "${1:-}" in
"")
    echo "object-stores: got no command, for example: bash scripts/object_stores.sh bash" >&2
    exit 2
    ;;
--inside) # the namespaces
    shift
    serve_and_run "$@"
    ;;
*)
    install_servers
    as_root=()
    [ "$(id -u)" = 0 ] || as_root=(--user --map-root-user)
    exec unshare "${as_root[@]}" --mount --net --pid --fork --kill-child --mount-proc bash "${BASH_SOURCE[0]}" --inside "$@"
    ;;
esac
