"""Runner file for the tfx command line and Vertex AI; set DETLOOM_RUN_FILE to a run file with a section `vertex`.

tfx pipeline create --engine=vertex --pipeline-path=pipelines/vertex_runner.py
tfx run create --engine=vertex --pipeline-name=NAME --project=PROJECT --region=REGION

It writes the same file as `detloom compile`. The tfx command line ignores the service account, network and encryption
key of `vertex`; `detloom submit` uses them.
"""

import sys

from detloom.pipelines.compile.compile_job import compile_run_file
from detloom.schemas.errors import InputError

if __name__ == "__main__":
    try:
        print(f"Written: {compile_run_file()}")
    except InputError as error:
        sys.exit(f"error: {error}")
