#!/usr/bin/env bash
# constraints/tfx-*.in + pyproject.toml -> constraints/tfx-*.txt: every package with its exact version.
# constraints/docs.in -> constraints/docs.txt: with hashes, too.
# Run it once for a TFX line, and again when requirements change; then set up and run all tests before committing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if command -v uv >/dev/null; then
    uv=(uv)
elif python3 -m uv --version >/dev/null 2>&1; then
    uv=(python3 -m uv)
else
    echo "make constraints: needs uv (pip install uv)." >&2
    exit 1
fi

# No header and no index options: this machine's paths and package mirror do not belong in the repository.
expand() { # LINE UV-OPTION...
    local line=$1 out
    shift
    out=$(mktemp)
    "${uv[@]}" pip compile -q --no-header --no-annotate --upgrade --extra dev "$@" \
        pyproject.toml "constraints/tfx-$line.in" >"$out"
    {
        echo "# Made by \`make constraints\` from pyproject.toml and tfx-$line.in, which has the reasons. Do not edit."
        cat "$out"
    } >"constraints/tfx-$line.txt"
    rm "$out"
    echo "constraints/tfx-$line.txt: $(grep -c == "constraints/tfx-$line.txt") packages"
}

expand 1.16 --python-version 3.10 --python-platform x86_64-manylinux_2_28
expand 1.21 --python-version 3.10 --universal

{
    echo "# Made by \`make constraints\` from docs.in. Do not edit."
    "${uv[@]}" pip compile -q --no-header --no-annotate --upgrade --generate-hashes --universal --python-version 3.10 \
        constraints/docs.in
} >constraints/docs.txt.new
mv constraints/docs.txt.new constraints/docs.txt
echo "constraints/docs.txt: $(grep -c == constraints/docs.txt) packages"
