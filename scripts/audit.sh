#!/usr/bin/env bash
# Search the packages in constraints/ for known vulnerabilities with pip-audit, which asks pypi.org; other indexes may not have
# its data. It skips packages that the Python of .venv does not need; `make venv PYTHON=...` chooses another one. Arguments go to
# pip-audit. Not part of CI: new findings appear without a change of this repository.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/own_pip_settings.sh

python=$(.venv/bin/python -c 'import platform; print(platform.python_version())')
tools=build/tools-$python
if ! cmp -s constraints/tools.txt "$tools/installed"; then
    rm -rf "$tools"
    .venv/bin/python -m venv "$tools"
    "$tools/bin/python" -m pip install --quiet --no-deps --require-hashes -r constraints/tools.txt
    cp constraints/tools.txt "$tools/installed"
fi
outcome=0
for file in constraints/*.txt; do
    echo "audit: $file, packages for Python $python"
    # --strict: a package that the index has no data on is an error, not a pass.
    "$tools/bin/pip-audit" --strict --disable-pip --require-hashes -r "$file" "$@" || outcome=1
done
exit "$outcome"
