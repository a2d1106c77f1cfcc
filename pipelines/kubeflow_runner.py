"""Runner file for open-source Kubeflow Pipelines; set DETLOOM_RUN_FILE to your run file, which has a section
`kubeflow`.

python pipelines/kubeflow_runner.py
detloom submit RUN.yaml --runner kubeflow --job NAME.job.yaml

It writes what `detloom compile` writes. The tfx command line has an engine `kubeflow`, which imports a module
that TFX 1.16 and 1.21 no longer have, and ends there.
"""

import sys

from detloom.pipelines.compile.runner_file import compile_run_file
from detloom.schemas.errors import InputError

if __name__ == "__main__":
    try:
        print(f"Written: {compile_run_file('kubeflow', '.job.yaml')}")
    except InputError as error:
        sys.exit(f"error: {error}")
