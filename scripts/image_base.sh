#!/usr/bin/env bash
# Make a Debian base image with debootstrap and import it into podman or docker, for machines that cannot pull images.
# Needs root. Prints the tag at the end; `make image BASE_IMAGE=THAT_TAG` builds on it.
#
#   TAG=localhost/detloom-base:SUITE      name of the image
#   SUITE=trixie | bookworm               Debian 13 (for TFX 1.21, with Debian's own Python 3.13) or 12 (for TFX 1.16);
#                                         default: that of TFX_LINE, or of the line of .venv, or trixie
#   PYTHON_PREFIX=/path/to/python-3.10    a Python tree (bin/, lib/, include/), for example pyenv's, copied to /usr/local;
#                                         required for bookworm, because no TFX line supports Python 3.11 on Debian 12
#   DEBIAN_MIRROR=http://...              the mirror for debootstrap
#   ENGINE=podman | docker
set -euo pipefail

. "$(dirname "${BASH_SOURCE[0]}")/tfx_lines.sh"
SUITE=${SUITE:-$(suite_of_line "$(line_of_images)")}
TAG=${TAG:-localhost/detloom-base:$SUITE}
ENGINE=${ENGINE:-$(command -v podman >/dev/null && echo podman || echo docker)}
PYTHON_PREFIX=${PYTHON_PREFIX:-}

# The libraries that a Python tree links to beyond libc, by Debian's package names.
PYTHON_LIBRARIES=libbz2-1.0,libcrypt1,libexpat1,libffi8,liblzma5,libncursesw6,libreadline8,libsqlite3-0,libtirpc3,libuuid1,zlib1g
case $SUITE in
    bookworm) PYTHON_LIBRARIES+=,libssl3 ;;
    trixie) PYTHON_LIBRARIES=${PYTHON_LIBRARIES/libreadline8/libreadline8t64},libssl3t64 ;;
    *) echo "image-base: SUITE: got '$SUITE', allowed: trixie, bookworm." >&2 && exit 1 ;;
esac

fail() { echo "image-base: $*" >&2 && exit 1; }

[ "$(id -u)" = 0 ] || fail "needs root, for chroot."
command -v debootstrap >/dev/null || fail "needs debootstrap (Debian, Ubuntu: apt install debootstrap)."
command -v "$ENGINE" >/dev/null || fail "$ENGINE is not installed; set ENGINE."
if [ -n "$PYTHON_PREFIX" ]; then
    [ -x "$PYTHON_PREFIX/bin/python3" ] || fail "PYTHON_PREFIX: no bin/python3 in $PYTHON_PREFIX."
    packages=$PYTHON_LIBRARIES
elif [ "$SUITE" = trixie ]; then
    packages=python3,python3-venv
else
    fail "SUITE=$SUITE needs PYTHON_PREFIX, a folder with Python 3.10 (pyenv install 3.10; pyenv prefix 3.10)."
fi

tree=$(mktemp -d)
trap 'rm -rf --one-file-system "$tree" "$tree.log"' EXIT
chmod 755 "$tree" # mktemp's 700 would become the image's root folder, closed to its own user

debootstrap --variant=minbase --include="ca-certificates,$packages" "$SUITE" "$tree" \
    "${DEBIAN_MIRROR:-http://deb.debian.org/debian}" >"$tree.log" 2>&1 || { tail -n 20 "$tree.log" >&2; exit 1; }

if [ -n "$PYTHON_PREFIX" ]; then
    version=$("$PYTHON_PREFIX/bin/python3" -I -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    # Without tests, static libraries, and packages and commands that were installed later.
    tar -C "$PYTHON_PREFIX" --exclude=__pycache__ --exclude=site-packages --exclude='config-*' --exclude='*.a' \
        --exclude="lib/python$version/test" --exclude="lib/python$version/idlelib" --exclude=turtledemo \
        -c "bin/python$version" lib include | tar -x -C "$tree/usr/local" --no-same-owner
    mkdir -p "$tree/usr/local/lib/python$version/site-packages"
    ln -sf "python$version" "$tree/usr/local/bin/python3"
    ln -sf python3 "$tree/usr/local/bin/python"
    # The build paths are useless in the image and reveal the build machine.
    sed -i "s,$(realpath "$PYTHON_PREFIX"),/usr/local,g" "$tree/usr/local/lib/python$version"/_sysconfigdata_*.py
    chroot "$tree" /sbin/ldconfig
fi
chroot "$tree" /usr/bin/env -i PATH=/usr/local/bin:/usr/bin python3 -I -c \
    'import bz2, ctypes, ensurepip, lzma, readline, sqlite3, ssl, venv' || fail "the Python in the tree is not complete."
chroot "$tree" /usr/bin/env -i PATH=/usr/local/bin:/usr/bin python3 -I -m compileall -q /usr/local/lib >/dev/null 2>&1 || true

# Without documentation, as in Debian's slim images, but with copyright notices.
rm -rf "$tree"/var/cache/apt/archives/*.deb "$tree"/var/lib/apt/lists/* "$tree"/var/log/* "$tree"/tmp/*
rm -rf "$tree"/usr/share/{man,info,locale,groff,lintian}/*
find "$tree/usr/share/doc" -type f ! -name copyright -delete
: >"$tree/etc/resolv.conf" && : >"$tree/etc/hostname" # debootstrap copies this machine's

tar -C "$tree" --numeric-owner -c . |
    "$ENGINE" import --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
        --change 'ENV LANG=C.UTF-8' --change 'CMD ["python3"]' - "$TAG" >/dev/null
echo "$TAG"
