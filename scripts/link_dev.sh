#!/usr/bin/env bash
# Make .dev/detloom, the package as links into this checkout, for type checkers and editors.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mkdir -p .dev/detloom
find .dev/detloom -type l -delete # links to what was renamed
for target in detloom/__init__.py detloom/__init__.pyi detloom/py.typed components pipelines schemas trainer_module; do
    ln -s "../../$target" ".dev/detloom/$(basename "$target")"
done
