#!/usr/bin/env bash
# Build sdist and wheel, install the wheel into a separate environment that uses .venv's dependencies but not its editable
# detloom, and run the smoke test there from another directory. Works in build/wheel-test and a temporary folder.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/own_pip_settings.sh

root=$PWD
work=$root/build/wheel-test
rm -rf "$work"
mkdir -p "$work"

# The sdist first, then the wheel from the unpacked sdist, so that the test finds files missing in the sdist.
.venv/bin/python -m build --no-isolation --outdir "$work/dist" . >"$work/build.log" 2>&1 ||
    { tail -n 25 "$work/build.log" >&2; exit 1; }
rm -rf ./*.egg-info build/lib build/bdist.*

.venv/bin/python -m venv --without-pip "$work/venv"
site() { "$1" -I -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
# A folder in a .pth file is added to the path, but the .pth files in it are not read, which keeps the hook of the
# editable install out.
site "$root/.venv/bin/python" >"$(site "$work/venv/bin/python")/dependencies.pth"
.venv/bin/python -m pip --quiet --python "$work/venv/bin/python" \
    install --no-deps --no-index "$work"/dist/*.whl

elsewhere=$(mktemp -d)
trap 'rm -rf "$elsewhere"' EXIT
cp scripts/wheel_smoke.py "$elsewhere/"
cd "$elsewhere"
"$work/venv/bin/python" -I "$elsewhere/wheel_smoke.py" "$root"
"$work/venv/bin/detloom" --help >"$elsewhere/help.txt"
grep -q '^Usage: ' "$elsewhere/help.txt" || { echo "wheel-test: detloom --help printed no usage" >&2; exit 1; }
echo "wheel-test: passed: $(cd "$work/dist" && echo *)"
