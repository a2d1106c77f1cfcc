#!/usr/bin/env bash
# Choose the TFX line and the Python for this machine. Print "LINE VERSION PATH", or print on stderr what to install.
#
#   PYTHON=/path/to/python3.10   use this Python (it is checked as well)
#   TFX_LINE=1.21 | 1.16         use this line
set -euo pipefail
unset PYTHONPATH PYTHONHOME PYTHONSTARTUP

. "$(dirname "${BASH_SOURCE[0]}")/tfx_lines.sh"

at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; } # at_least HAVE WANTED

glibc_version() { getconf GNU_LIBC_VERSION 2>/dev/null | awk '{print $2}'; }

has_symbol_of_libstdcxx() { # has_symbol_of_libstdcxx NAME
    local library
    while read -r library; do
        grep -aqF "$1" "$library" && return 0
    done < <(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | awk '/libstdc\+\+\.so\.6 .*x86-64/ {print $NF}')
    return 1
}

lines_of_machine() { # sets LINES_HERE and WHY
    local glibc line needed symbol
    glibc=$(glibc_version)
    if [ "$(uname -s)-$(uname -m)" != Linux-x86_64 ] || [ -z "$glibc" ]; then
        echo "detloom: TFX has wheels for Linux on x86_64 with glibc only; this is $(uname -s) on $(uname -m)." \
            "Use a Linux machine or container." >&2
        return 1
    fi
    LINES_HERE="" WHY="this machine has glibc $glibc"
    for line in $TFX_LINES; do
        read -r needed symbol <<<"$(libraries_of_line "$line")"
        if at_least "$glibc" "$needed" && { [ -z "$symbol" ] || has_symbol_of_libstdcxx "$symbol"; }; then
            LINES_HERE+="$line "
        else
            WHY="TFX $line needs glibc $needed${symbol:+ and $symbol}; $WHY"
        fi
    done
    if [ -n "${TFX_LINE:-}" ]; then
        check_line "$TFX_LINE"
        LINES_HERE=$TFX_LINE
        WHY="TFX_LINE=$TFX_LINE"
    fi
}

minors() { # minors LINES: the versions of Python that these run on, the newest first
    local line
    for line in $1; do pythons_of_line "$line"; done | tr ' ' '\n' | sort -ruV
}

candidates() { # paths of Python interpreters, one a line; some may not run
    local minor root
    if [ -n "${PYTHON:-}" ]; then
        command -v "$PYTHON" || echo "$PYTHON"
        return
    fi
    for minor in $(minors "$TFX_LINES") 3; do
        command -v "python$minor" || true
    done
    # pyenv: the shim on the PATH prints "command not found" for a version that is installed but not selected.
    for root in "${PYENV_ROOT:-}" "$(pyenv root 2>/dev/null || true)" "$HOME/.pyenv"; do
        [ -n "$root" ] && printf '%s\n' "$root"/versions/3.1*/bin/python3 | sort -rV
    done
    # uv: its own Python versions, even if the command is not on the PATH.
    for minor in $(minors "$TFX_LINES"); do
        uv python find --system --no-project "$minor" 2>/dev/null || true
    done
    printf '%s\n' "${UV_PYTHON_INSTALL_DIR:-${XDG_DATA_HOME:-$HOME/.local/share}/uv/python}"/cpython-3.1*/bin/python3 |
        sort -rV
}

# version|fault|path of the interpreter itself: not a pyenv shim, not an environment that may be deleted
PROBE='
import os, platform, struct, sys, sysconfig
fault = ""
if platform.python_implementation() != "CPython" or struct.calcsize("P") != 8:
    fault = "not a 64-bit CPython"
elif sysconfig.get_config_var("Py_GIL_DISABLED"):
    fault = "a free-threaded build"
elif not os.path.isfile(os.path.join(sysconfig.get_path("include"), "Python.h")):
    fault = "has no Python.h (Debian, Ubuntu: apt install python%d.%d-dev)" % sys.version_info[:2]
try:
    import ensurepip, venv
except ImportError:
    fault = "has no venv (Debian, Ubuntu: apt install python%d.%d-venv)" % sys.version_info[:2]
base = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
print("%d.%d.%d|%s|%s" % (sys.version_info[:3] + (fault, base)))
'

probe_all() { # sets FOUND, one "version|fault|path" a line, without doubles
    local path answer
    FOUND=""
    while read -r path; do
        [ -x "$path" ] || continue
        answer=$("$path" -I -c "$PROBE" 2>/dev/null) || continue
        case "$FOUND" in *"|${answer##*|}"$'\n'*) continue ;; esac
        FOUND+="$answer"$'\n'
    done < <(candidates)
}

choose() { # prints the choice, or fails
    local line minor version fault path
    for line in $LINES_HERE; do
        for minor in $(pythons_of_line "$line"); do
            while IFS='|' read -r version fault path; do
                if [ "${version%.*}" = "$minor" ] && [ -z "$fault" ]; then
                    echo "$line $version $path"
                    return
                fi
            done <<<"$FOUND"
        done
    done
    return 1
}

complain() {
    local wanted line version fault path
    wanted=$(minors "$LINES_HERE" | sort -V | paste -sd ' ')
    {
        echo "detloom: found no suitable Python. Required on this machine: Python ${wanted// / or } ($WHY)."
        [ -n "${PYTHON:-}" ] && echo "PYTHON=$PYTHON is set, so no other Python was tried."
        [ -z "${FOUND//$'\n'/}" ] && echo "No working Python was found."
        while IFS='|' read -r version fault path; do
            [ -z "$path" ] && continue
            case " $wanted " in *" ${version%.*} "*) ;; *) fault="is $version" ;; esac
            echo "  $path: $fault"
        done <<<"$FOUND"
        line=${wanted##* }
        echo "Install one in one of these ways, then run make again:"
        echo "  pyenv           pyenv install $line"
        echo "  uv              uv python install $line"
        echo "  Ubuntu          add-apt-repository ppa:deadsnakes/ppa &&" \
            "apt install python$line python$line-venv python$line-dev"
        [ "$line" != 3.10 ] && echo "  Debian, Ubuntu  apt install python3 python3-venv python3-dev   (Debian 13, Ubuntu 24.04)"
        echo "or choose one: make PYTHON=/path/to/python$line"
    } >&2
    return 1
}

lines_of_machine
probe_all
choose || complain
