#!/usr/bin/env bash
# Search the pinned packages of all TFX lines for known vulnerabilities with pip-audit, which asks pypi.org; other indexes may
# not have its data. Arguments go to pip-audit. Not part of CI: new findings appear without a change of this repository.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/own_pip_settings.sh
. scripts/tfx_lines.sh

tools=build/tools
if ! cmp -s constraints/tools.txt "$tools/installed"; then
    rm -rf "$tools"
    .venv/bin/python -m venv "$tools"
    "$tools/bin/python" -m pip install --quiet --no-deps --require-hashes -r constraints/tools.txt
    cp constraints/tools.txt "$tools/installed"
fi
outcome=0
for line in $TFX_LINES; do
    echo "audit: TFX $line"
    # --strict: a package that the index has no data on is an error, not a pass.
    "$tools/bin/pip-audit" --strict --disable-pip --require-hashes -r "constraints/tfx-$line.txt" "$@" || outcome=1
done
exit "$outcome"
