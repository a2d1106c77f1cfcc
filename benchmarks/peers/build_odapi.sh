#!/usr/bin/env bash
# Builds the environment in which the Object Detection API (TF2) runs beside us: Python 3.9, its last release, the
# packages of its time. About 2.2 GB. Safe to repeat: a finished environment is left alone.
#   ODAPI_ENV   where it goes (default ~/.cache/detloom/peers/odapi)
#   PYTHON39    the interpreter (default: python3.9 on the path, else pyenv's 3.9)
set -euo pipefail

env_dir=${ODAPI_ENV:-$HOME/.cache/detloom/peers/odapi}
done_file=$env_dir/complete
[[ -f $done_file ]] && { echo "$env_dir"; exit 0; }

python=${PYTHON39:-}
if [[ -z $python ]]; then
    for candidate in python3.9 "$HOME"/.pyenv/versions/3.9.*/bin/python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 9))' 2>/dev/null; then
            python=$candidate
            break
        fi
    done
fi
[[ -n $python ]] || { echo "no Python 3.9 found: set PYTHON39" >&2; exit 1; }

mkdir -p "$(dirname "$env_dir")"
rm -rf "$env_dir"
"$python" -m venv "$env_dir"
pip=("$env_dir/bin/python" -m pip install --quiet --disable-pip-version-check)
"${pip[@]}" setuptools==69.5.1 wheel
"${pip[@]}" -r "$(dirname "$0")/odapi_requirements.txt"
"${pip[@]}" --no-deps tf-models-research-object-detection==2.8.0.post1 tf-models-official==2.10.1

# The package keeps these inside object_detection/, and its own code imports them from the top.
site=$("$env_dir/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
for name in nets deployment datasets preprocessing; do
    [[ -d $site/object_detection/$name ]] && ln -sfn "object_detection/$name" "$site/$name"
done
"$env_dir/bin/python" -c 'from object_detection.dataset_tools import create_pascal_tf_record' >/dev/null
touch "$done_file"
echo "$env_dir"
