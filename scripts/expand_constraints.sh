#!/usr/bin/env bash
# Write the exact version and the hashes of every package to constraints/*.txt. For each TFX line, from tfx-LINE.in and
# pyproject.toml:
#
#   tfx-LINE.txt            the packages of a run: complete, so that pip installs it without resolving
#   dev-LINE.txt, openvino-...  what an extra of pyproject.toml adds to it
#   gpu-LINE.txt, tpu-...   what TensorFlow needs for an accelerator
#
# docs.in and tools.in become docs.txt and tools.txt. Then set up and run all tests before committing.
#
#   UPGRADE=0   keep the versions in the files, and add only what is missing
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../constraints"
. ../scripts/tfx_lines.sh

if command -v uv >/dev/null; then
    uv=(uv)
elif python3 -m uv --version >/dev/null 2>&1; then
    uv=(python3 -m uv)
else
    echo "make constraints: needs uv (pip install uv)." >&2
    exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# No header and no index options: this machine's paths and package mirror do not belong in the repository.
compile() { # compile FILE UV-ARGUMENT...: writes $work/FILE; uv keeps the versions that this has before
    local file=$1
    shift
    if [ "${UPGRADE:-1}" = 0 ] && [ -e "$file" ]; then cp "$file" "$work/$file"; fi
    "${uv[@]}" pip compile -q --no-header --no-annotate --generate-hashes --python-version 3.10 -o "$work/$file" "$@" >/dev/null
}

save() { # save FILE SOURCE: from $work, with a comment
    { echo "# Made by \`make constraints\` from $2. Do not edit." && cat "$work/$1"; } >"$1"
    echo "constraints/$1: $(grep -c == "$1") packages"
}

save_added() { # save_added FILE BASE SOURCE: only the packages that are not in BASE; the lines after a name are its hashes
    awk 'NR == FNR {if (/^[^ ]/) base[$0]; next} /^[^ ]/ {is_new = !($0 in base)} is_new' "$work/$2" "$work/$1" >"$work/added"
    mv "$work/added" "$work/$1"
    save "$1" "$3"
}

for line in $TFX_LINES; do
    platform=(--universal)
    [ "$line" != 1.16 ] || platform=(--python-platform x86_64-manylinux_2_28)
    packages=tfx-$line.txt
    compile "$packages" "${platform[@]}" ../pyproject.toml "tfx-$line.in"
    save "$packages" "pyproject.toml and tfx-$line.in, which has the reasons"
    platform+=(-c "$work/$packages")
    for extra in dev openvino; do
        compile "$extra-$line.txt" "${platform[@]}" --extra "$extra" ../pyproject.toml
        save_added "$extra-$line.txt" "$packages" "the extra $extra of pyproject.toml"
    done
    compile "gpu-$line.txt" "${platform[@]}" - <<<"tensorflow[and-cuda]"
    save_added "gpu-$line.txt" "$packages" "TensorFlow's extra and-cuda"
    if [ -n "$(libtpu_of_line "$line")" ]; then
        tensorflow=$(sed -n 's/^tensorflow==\([0-9.]*\).*/\1/p' "$packages")
        compile "tpu-$line.txt" --no-deps - <<<"tensorflow-tpu==$tensorflow"
        save "tpu-$line.txt" "the version of TensorFlow in $packages"
    fi
done
for name in docs tools; do
    compile "$name.txt" --universal "$name.in"
    save "$name.txt" "$name.in"
done
