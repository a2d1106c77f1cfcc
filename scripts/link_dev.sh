#!/usr/bin/env bash
# .dev/detloom: the package as type checkers and editors can follow it, made of links into this checkout.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mkdir -p .dev/detloom
find .dev/detloom -type l -delete # links to what was renamed
for target in detloom/__init__.py detloom/py.typed components pipelines schemas trainer_module; do
    ln -s "../../$target" ".dev/detloom/$(basename "$target")"
done
