"""Runner file for the tfx command line; set DETLOOM_RUN_FILE to your run file (the demo is the default).

tfx pipeline create --engine=local --pipeline-path=pipelines/local_runner.py
tfx run create --engine=local --pipeline-name=demo
"""

import sys

from detloom.pipelines.local.run_local import run_file_from_environment, run_locally
from detloom.schemas.errors import InputError
from detloom.schemas.reading.redact import escape_lines

if __name__ == "__main__":
    try:
        if summary := run_locally(run_file_from_environment()):
            print(summary)
    except InputError as error:
        print(f"error: {escape_lines(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)
