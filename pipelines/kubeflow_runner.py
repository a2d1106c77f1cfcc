"""Runner file for open-source Kubeflow Pipelines; set DETLOOM_RUN_FILE to a run file with a section `kubeflow`.

python pipelines/kubeflow_runner.py
detloom submit RUN.yaml --runner kubeflow --job NAME.job.yaml

It writes the same file as `detloom compile`. The engine `kubeflow` of the tfx command line does not work: it imports a
module that TFX 1.16 and 1.21 no longer have.
"""

import sys

from detloom.pipelines.compile.compile_job import compile_run_file
from detloom.schemas.errors import InputError

if __name__ == "__main__":
    try:
        print(f"Written: {compile_run_file('kubeflow', '.job.yaml')}")
    except InputError as error:
        sys.exit(f"error: {error}")
