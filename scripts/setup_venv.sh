#!/usr/bin/env bash
# Build .venv for this checkout: a suitable Python, the pinned packages of a TFX line, and detloom itself (editable).
# Safe to repeat: does nothing if the environment is up to date, and starts over if the last set-up did not finish.
# PYTHON= and TFX_LINE= are explained in find_python.sh; ACCELERATOR=gpu adds NVIDIA's libraries, which stay until
# ACCELERATOR=cpu.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
venv=$root/.venv
stamp=$venv/detloom-stamp # written last
mine=$venv/detloom-venv   # written first; marks the folder as safe to delete; has the chosen accelerator
log=$venv/setup.log
LAYOUT=1 # raise it when `build` changes in a way that older environments must follow
BUILD_TOOLS='/^[^ ]/ {is_one = /^(setuptools|wheel)==/} is_one' # awk: these packages of a file, with their hashes

. "$root/scripts/own_pip_settings.sh"

say() { printf 'set-up: %s\n' "$*"; }

hash_of() { (cd "$root" && cat -- "$@") | sha256sum | cut -c 1-16; }

# Separate hashes of the packages and of the editable install, so that a change of pyproject.toml takes only seconds.
packages_hash() { echo "$LAYOUT-$(hash_of constraints/{tfx,dev,gpu}-"$1.txt")"; }
project_hash() { hash_of pyproject.toml setup.py detloom/__init__.py; }

stamped() { sed -n "s/^$1=//p" "$stamp" 2>/dev/null || true; }

environment_is_current() {
    local line version
    line=$(stamped line)
    [ -n "$line" ] && [ "$(stamped root)" = "$root" ] || return 1
    [ "$(stamped packages)" = "$(packages_hash "$line")" ] || return 1
    [ -z "${TFX_LINE:-}" ] || [ "$TFX_LINE" = "$line" ] || return 1
    [ "${ACCELERATOR:-}" != cpu ] || [ "$(stamped accelerator)" != gpu ] || return 1
    # -S: without site-packages it starts in 10 ms. A system upgrade from 3.12 to 3.13 leaves a link to the old version.
    version=$("$venv/bin/python" -I -S -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || return 1
    [[ $(stamped version) == "$version".* ]] || return 1
    if [ -n "${PYTHON:-}" ]; then
        [ "$(bash "$root/scripts/find_python.sh")" = "$line $(stamped version) $(stamped python)" ] || return 1
    fi
}

write_stamp() { # LINE VERSION PYTHON
    printf '%s\n' "line=$1" "version=$2" "python=$3" "root=$root" "packages=$(packages_hash "$1")" \
        "project=$(project_hash)" "accelerator=$accelerator" >"$stamp.new"
    mv "$stamp.new" "$stamp"
}

# step NAME COMMAND...: write the output to the log, show the elapsed time; on failure show the end of the log.
step() {
    local what=$1 pid code=0 start=$SECONDS shown=0
    shift
    printf '\n== %s\n' "$*" >>"$log"
    "$@" >>"$log" 2>&1 </dev/null &
    pid=$!
    trap 'kill "$pid" 2>/dev/null; wait "$pid" 2>/dev/null || true
        say "interrupted; the next call starts over"; exit 130' INT TERM
    while kill -0 "$pid" 2>/dev/null; do
        sleep 0.2
        if [ -t 1 ]; then
            printf '\rset-up: %s ... %d s ' "$what" $((SECONDS - start))
        elif [ $((SECONDS - start - shown)) -ge 30 ]; then
            shown=$((SECONDS - start))
            say "$what ... $shown s"
        fi
    done
    wait "$pid" || code=$?
    trap - INT TERM
    [ -t 1 ] && printf '\r\033[K'
    if [ "$code" -ne 0 ]; then
        {
            echo "set-up: $what failed with code $code. The end of $log:"
            tail -n 25 "$log" | sed 's/^/  | /'
        } >&2
        exit 1
    fi
    say "$what: $((SECONDS - start)) s"
}

clear_old() {
    [ -e "$venv" ] || [ -L "$venv" ] || return 0
    if [ ! -e "$mine" ]; then
        echo "set-up: $venv exists and was not made by detloom's set-up. Move it away, then run make again." >&2
        exit 1
    fi
    rm -rf "$venv"
}

build() {
    local choice line version python
    choice=$(bash "$root/scripts/find_python.sh")
    read -r line version python <<<"$choice"
    if ! command -v "${CXX:-g++}" >/dev/null; then
        echo "set-up: no C++ compiler found: pyfarmhash, which TFX depends on, has no wheel and must be compiled." \
            "Debian, Ubuntu: apt install g++" >&2
        exit 1
    fi
    clear_old
    say "TFX $line on Python $version ($python); takes some minutes and 3.3 GB the first time"
    mkdir -p "$venv" && echo "accelerator=$accelerator" >"$mine" && : >"$log"
    step "virtual environment" "$python" -I -m venv "$venv"
    # The build tools come first, then no isolation: packages without a wheel are built with the pinned setuptools.
    awk "$BUILD_TOOLS" "$root/constraints/tfx-$line.txt" >"$venv/build-tools.txt"
    step "build tools" install_files "$venv/build-tools.txt"
    step "packages" install_files "$root/constraints/tfx-$line.txt" "$root/constraints/dev-$line.txt"
    install_project
    [ "$accelerator" != gpu ] || install_gpu_libraries "$line"
    step "check" "$venv/bin/python" -m pip check
    write_stamp "$line" "$version" "$python"
    say "done in $SECONDS s"
}

# Together the files are complete (`pip check` confirms it), so pip need not resolve and cannot backtrack.
install_files() { # FILE...
    "$venv/bin/python" -m pip install --progress-bar off --no-build-isolation --no-deps --require-hashes "${@/#/--requirement=}"
}

install_project() { # a folder has no hash
    step "detloom, editable" env PIP_REQUIRE_HASHES=0 \
        "$venv/bin/python" -m pip install --no-deps --no-build-isolation -e "$root"
}

install_gpu_libraries() { # LINE
    step "NVIDIA's libraries" install_files "$root/constraints/gpu-$1.txt"
}

# One set-up at a time per checkout. pip inherits the lock: if only this script is killed, the next call waits until the
# orphaned pip ends before it starts over.
exec 9<"$root"
if command -v flock >/dev/null && ! flock -n 9; then
    say "another set-up is running here; waiting for it"
    flock 9
fi

accelerator=$(cat "$stamp" "$mine" 2>/dev/null | sed -n 's/^accelerator=//p' | tail -n 1 || true)
case ${ACCELERATOR:-} in cpu | gpu) accelerator=$ACCELERATOR ;; esac # others are those of images
[ ! -e "$mine" ] || echo "accelerator=$accelerator" >"$mine"
if ! environment_is_current; then
    build
elif [ "$(stamped project)" != "$(project_hash)" ] || [ "$(stamped accelerator)" != "$accelerator" ]; then
    [ "$accelerator" != gpu ] || install_gpu_libraries "$(stamped line)"
    install_project
    write_stamp "$(stamped line)" "$(stamped version)" "$(stamped python)"
fi
