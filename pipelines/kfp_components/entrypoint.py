"""The command of the components' containers: python -m detloom.pipelines.kfp_components.entrypoint STEP EXECUTOR_INPUT.

kfp's executor turns the input into the arguments of the function STEP in `steps.py`, and writes the metadata of its
output artifacts for the backend. A user's mistake ends with one sentence on stderr.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

from kfp.dsl.executor import Executor

from detloom.pipelines.container.entrypoint import explain, protect_files
from detloom.pipelines.kfp_components import steps
from detloom.schemas.errors import InputError
from detloom.trainer_module.files.system_errors import describe_system_error

_STEPS = {step.__name__: step for step in (steps.ingest, steps.validate, steps.train, steps.evaluate, steps.push)}


def main(arguments: Sequence[str]) -> int:
    """Run a step and return the exit code.

    Args:
        arguments: name of the step, and the `ExecutorInput` as JSON.
    """
    protect_files()
    name, text = arguments
    executor_input = json.loads(text)
    inputs = executor_input.get("inputs", {})
    inputs["parameterValues"] = _with_whole_numbers(inputs.get("parameterValues", {}))
    try:
        Executor(executor_input, _STEPS[name]).execute()
    except Exception as error:
        described = describe_system_error(error) if isinstance(error, OSError) else None
        return explain(InputError(described) if described else error)
    return 0


def _with_whole_numbers(value: Any) -> Any:
    """Convert 8.0 to 8 in plain data: protobuf has only one type of numbers, and kfp's local runner writes floats."""
    match value:
        case dict():
            return {key: _with_whole_numbers(each) for key, each in value.items()}
        case list():
            return [_with_whole_numbers(each) for each in value]
        case float() if value.is_integer():
            return int(value)
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
