#!/usr/bin/env bash
# Run `make test` and `make demo` (or the given targets) on the first TFX line, in a Debian 13 folder made by debootstrap.
# Needs root and debootstrap. Everything runs in its own mount and process namespaces: however this script ends, no mount
# and no process remains.
#
#   DEBIAN13_DIR=...   the folder; kept with its .venv, so that the next call is fast. Delete it to start over.
#   DEBIAN_MIRROR=...  default: the mirror of this machine's apt, otherwise deb.debian.org
#   REF=HEAD           test a commit; default: the working tree without ignored files
#   FRESH=1            delete the .venv in the folder first
#   ALLOW_SKIP=1       skip on a machine that cannot run it, instead of failing
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
. "$here/scripts/tfx_lines.sh"
folder=${DEBIAN13_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/detloom/debian13}
tree=$folder/tree
home=/src # inside the tree, as is the next
checkout=$home/detloom
targets=("${@:-test}")
[ $# -eq 0 ] && targets=(test demo)

skip() {
    if [ "${ALLOW_SKIP:-}" = 1 ]; then echo "test-debian13: SKIPPED: $*" && exit 0; fi
    echo "test-debian13: $* ALLOW_SKIP=1 skips these tests." >&2
    exit 1
}
say() { echo "test-debian13: $*"; }

[ "$(id -u)" = 0 ] || skip "needs root, for chroot and mounts."
for tool in debootstrap setpriv unshare chroot; do
    command -v "$tool" >/dev/null || skip "needs $tool (Debian, Ubuntu: apt install debootstrap util-linux)."
done
[ -e /usr/share/debootstrap/scripts/trixie ] || skip "this debootstrap does not know Debian 13 (trixie)."
# setpriv: the processes inside end with this script even if the script is killed.
APART=(setpriv --pdeathsig KILL unshare --mount --pid --fork --kill-child --propagation private)
"${APART[@]}" mount -t proc proc /proc 2>/dev/null ||
    skip "this machine does not allow new mount and process namespaces."

# --- settings of this machine for its package servers, passed on without naming any of them here ---

host_mirror() { # the first Debian archive among apt's sources, in either of their two formats
    cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
        awk '$1 == "URIs:" {print $2} $1 == "deb" {for (i = 2; i <= NF; i++) if ($i ~ /^https?:/) {print $i; break}}' |
        grep -E '/debian/?$' | head -n 1
}

carried_env() { # sets CARRIED: proxies, certificates, pip's settings
    CARRIED=(HOME="$home" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8
        TERM="${TERM:-dumb}" DEBIAN_FRONTEND=noninteractive TFX_LINE="${TFX_LINES%% *}")
    local pair
    while IFS= read -r -d '' pair; do
        [[ $pair =~ ^(([hH][tT][tT][pP][sS]?|[aA][lL][lL]|[nN][oO])_[pP][rR][oO][xX][yY]|PIP_[A-Z_]+|CI|SSL_CERT_FILE|REQUESTS_CA_BUNDLE)= ]] &&
            CARRIED+=("$pair")
    done < <(env -0)
    return 0
}

local_package_paths() { # files and folders of this machine that pip's settings and the environment name
    {
        python3 -m pip config list 2>/dev/null || true
        printf '%s\n' "${CARRIED[@]}"
    } | grep -E '^(:env:|global|install|PIP_|SSL_|REQUESTS_)' | grep -oE "(file://)?/[^ '\"]+" | sed 's,^file://,,' |
        grep '^/[^/]' | while read -r path; do
        # A package index can be a folder of links to files next to it, so its parent is mounted.
        case $path in */simple | */simple/) path=$(dirname "$path") ;; esac
        [ -e "$path" ] && echo "$path"
    done | sort -u
}

carry_files() { # copies apt's network settings, pip's settings, name lookup and extra certificates into the tree
    local file
    mkdir -p "$tree/etc/apt/apt.conf.d" "$tree$home/.config" "$tree/usr/local/share/ca-certificates"
    apt-config dump 2>/dev/null | grep -E '^Acquire::(https?|Check-Valid-Until|Check-Date|Retries|ForceIPv[46])\b' \
        >"$tree/etc/apt/apt.conf.d/99host" || true
    for file in /etc/resolv.conf /etc/hosts /etc/pip.conf; do
        [ -f "$file" ] && cp -L "$file" "$tree$file"
    done
    [ -d "$HOME/.config/pip" ] && cp -rL "$HOME/.config/pip" "$tree$home/.config/"
    [ -f "$HOME/.pip/pip.conf" ] && mkdir -p "$tree$home/.pip" && cp -L "$HOME/.pip/pip.conf" "$tree$home/.pip/"
    cp -L /usr/local/share/ca-certificates/*.crt "$tree/usr/local/share/ca-certificates/" 2>/dev/null || true
}

# --- entering the folder ---

# The first process of the namespaces, with the folder, the command and the visible paths as arguments.
# shellcheck disable=SC2016
INSIDE='
tree=$1 command=$2
shift 2
mount -t proc proc "$tree/proc"
mount -t tmpfs -o mode=755 dev "$tree/dev"
for node in null zero full random urandom tty; do
    : >"$tree/dev/$node"
    mount --bind "/dev/$node" "$tree/dev/$node"
done
ln -s /proc/self/fd "$tree/dev/fd"
for number in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${number%:*}" "$tree/dev/${number#*:}"; done
mkdir "$tree/dev/shm"
mount -t tmpfs -o mode=1777 shm "$tree/dev/shm"
for path in "$@"; do # only what the tree does not have itself: a mount point of an earlier call is empty
    if [ -d "$path" ]; then
        mkdir -p "$tree$path"
        [ -n "$(ls -A "$tree$path")" ] && continue
    else
        [ -s "$tree$path" ] && continue
        mkdir -p "$tree$(dirname "$path")" && : >"$tree$path"
    fi
    mount --bind -o ro "$path" "$tree$path"
done
exec chroot "$tree" /bin/bash -euc "$command"
'

enter() { # enter COMMAND
    [ -n "${PATHS+set}" ] || mapfile -t PATHS < <(local_package_paths)
    env -i "${CARRIED[@]}" "${APART[@]}" \
        bash -euc "$INSIDE" inside "$tree" "$1" "${PATHS[@]}" </dev/null
}

# --- the steps ---

build_tree() {
    local mirror log=$folder/debootstrap.log
    [ -e "$folder/built" ] && return
    mirror=${DEBIAN_MIRROR:-$(host_mirror || true)}
    rm -rf --one-file-system "$tree"
    mkdir -p "$tree"
    say "building a Debian 13 folder in $folder"
    # debootstrap mounts /proc in the folder while it works: use namespaces here as well, in case it is killed.
    if ! "${APART[@]}" --mount-proc debootstrap --variant=minbase --include=ca-certificates trixie "$tree" \
        "${mirror:-http://deb.debian.org/debian}" >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        exit 1
    fi
    carry_files
    if ! enter 'update-ca-certificates && apt-get update &&
        apt-get install -y --no-install-recommends python3-venv python3-dev g++ make git ca-certificates' >>"$log" 2>&1; then
        tail -n 20 "$log" >&2
        exit 1
    fi
    : >"$folder/built"
    say "Debian 13 folder: $SECONDS s"
}

copy_checkout() { # into the tree, replacing all but its .venv
    local target=$tree$checkout
    mkdir -p "$target"
    [ -n "${FRESH:-}" ] && rm -rf "$target/.venv"
    find "$target" -mindepth 1 -maxdepth 1 ! -name .venv -exec rm -rf {} +
    cd "$here"
    if [ -n "${REF:-}" ]; then
        git archive "$REF" | tar -x -C "$target"
    else
        git ls-files -z --cached --others --exclude-standard |
            while IFS= read -r -d '' path; do if [ -e "$path" ]; then printf '%s\0' "$path"; fi; done |
            tar -c --null -T - | tar -x -C "$target"
    fi
    # Some tests ask git which files belong to the project.
    enter "cd $checkout && git init -q && git add -A && git -c user.name=test -c user.email=test@localhost commit -qm test"
}

left_behind() { # what must not exist when everything has ended
    awk -v tree="$tree" 'index($2, tree) == 1 {print "mount " $2}' /proc/self/mounts
    local link
    for link in /proc/[0-9]*/root; do
        [ "$(readlink "$link" 2>/dev/null)" = "$tree" ] && echo "process ${link%/root}"
    done
    return 0
}

carried_env
mkdir -p "$folder"
folder=$(cd "$folder" && pwd -P)
tree=$folder/tree
build_tree
carry_files
copy_checkout

outcome=0
[ "${targets[0]}" = venv ] || targets=(venv "${targets[@]}")
for target in "${targets[@]}"; do
    start=$SECONDS
    if enter "cd $checkout && make $target"; then result=passed; else result=FAILED outcome=1; fi
    report+=("make $target: $result in $((SECONDS - start)) s")
    [ "$target" = venv ] && [ "$outcome" = 1 ] && break
done
remains=$(left_behind)
if [ -n "$remains" ]; then
    outcome=1
    report+=("left behind: $remains")
fi
# shellcheck disable=SC2016
report+=("$(enter "cd $checkout && .venv/bin/python -c 'import sys, importlib.metadata as m; print(\"Debian 13, Python\", sys.version.split()[0], \", TFX\", m.version(\"tfx\"))'" 2>/dev/null || echo "no .venv")")
for line in "${report[@]}"; do say "$line"; done
exit "$outcome"
