#!/usr/bin/env bash
# Sourced: what differs between the TFX lines. pipelines/tfx_line.py is the same for Python.
#
# 1.21 comes first. 1.16 is for systems with an older glibc and for TPUs, and stays as long as these need it; its only
# Python, 3.10, has had no fixes since October 2026.
TFX_LINES="1.21 1.16" # the preferred first
_checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

check_line() { # LINE
    case " $TFX_LINES " in *" $1 "*) ;; *) echo "TFX_LINE: got '$1', allowed: ${TFX_LINES// /, }." >&2 && return 1 ;; esac
}

pythons_of_line() { # minor versions that a line runs on, the preferred first
    case $1 in
        1.21) echo "3.13 3.12 3.11 3.10" ;;
        1.16) echo "3.10" ;;
    esac
}

libraries_of_line() { # the glibc and the symbol of libstdc++ that its wheels need, if not every system has it
    case $1 in
        1.21) echo "2.38 GLIBCXX_3.4.32" ;; # of GCC 13
        1.16) echo "2.17" ;;
    esac
}

base_image_of_line() {
    case $1 in
        1.21) echo docker.io/library/python:3.13-slim-trixie ;;
        1.16) echo docker.io/library/python:3.10-slim-bookworm ;;
    esac
}

suite_of_line() { base_image_of_line "$1" | sed 's/.*-//'; } # the Debian release of its base image

beam_image_of_line() { # the SDK image for the Python of its base image, and for the Beam that is pinned for this Python
    local minor beam
    minor=$(base_image_of_line "$1" | sed 's/.*:\([0-9.]*\)-.*/\1/')
    # The file has the version for the newest Python last.
    beam=$(sed -n 's/^apache-beam==\([0-9.]*\).*/\1/p' "$_checkout/constraints/tfx-$1.txt" | tail -n 1)
    echo "docker.io/apache/beam_python${minor}_sdk:$beam"
}

libtpu_of_line() { # the version of libtpu for the line's TensorFlow, empty if that has no build for TPUs
    case $1 in
        1.16) echo 1.10.1 ;; # TensorFlow 2.16.1 and 2.16.2: https://docs.cloud.google.com/tpu/docs/runtimes
    esac
}

line_of_images() { # TFX_LINE, or the line of .venv, which compiles the jobs for the image, or the first
    local line
    line=${TFX_LINE:-$(sed -n 's/^line=//p' "$_checkout/.venv/detloom-stamp" 2>/dev/null || true)}
    line=${line:-${TFX_LINES%% *}}
    check_line "$line" && echo "$line"
}
