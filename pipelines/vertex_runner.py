"""Runner file for the tfx command line and Vertex AI; set DETLOOM_RUN_FILE to your run file, which has a section
`vertex`.

tfx pipeline create --engine=vertex --pipeline-path=pipelines/vertex_runner.py
tfx run create --engine=vertex --pipeline-name=NAME --project=PROJECT --region=REGION

The file is that of `detloom compile`. Of `vertex`, the tfx command line leaves out service account, network and
encryption key; `detloom submit` does not.
"""

import sys

from detloom.pipelines.compile.runner_file import compile_run_file
from detloom.schemas.errors import InputError

if __name__ == "__main__":
    try:
        print(f"Written: {compile_run_file('vertex', '.json')}")
    except InputError as error:
        sys.exit(f"error: {error}")
