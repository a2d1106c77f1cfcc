#!/usr/bin/env bash
# Build the documentation site from docs/ to site/. Dead links, missing anchors and other warnings fail.
# The tools have an environment of their own, .venv-docs, which is built again when constraints/docs.txt changes. Once it is
# there, nothing is downloaded.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

. scripts/own_pip_settings.sh

venv=.venv-docs
stamp=$venv/detloom-stamp # written last
wanted=$(sha256sum <constraints/docs.txt)

if [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ] || ! "$venv/bin/python" -I -c '' 2>/dev/null; then
    read -r _ _ python <<<"$(bash scripts/find_python.sh)"
    echo "docs-site: installing MkDocs in $venv"
    rm -rf "$venv"
    "$python" -I -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --require-hashes --only-binary :all: -r constraints/docs.txt
    echo "$wanted" >"$stamp"
fi

bash scripts/link_dev.sh # mkdocstrings finds the package through these links
NO_MKDOCS_2_WARNING=1 "$venv/bin/mkdocs" build --quiet --strict --clean
echo "docs-site: wrote site/index.html. To search, serve it: python3 -m http.server --directory site"
