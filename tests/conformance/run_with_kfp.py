"""Run a compiled job with the KFP SDK's local runner, in a Python with kfp 2.17: run_with_kfp.py JOB ROOT NAME=VALUE...

That runner supports less than the cluster's launcher (kfp 2.17.0, kfp/local):
    executor_input_utils.py      removes five characters from component names, which the SDK's compiler starts with
                                 `comp-`, and then does not find the outputs of tasks: TFX's components are renamed here
    docker_task_handler.py       mounts only ROOT, regardless of the platform document; a failed container counts as
                                 succeeded if it was removed before its exit code was read
    enhanced_dag_orchestrator.py conditions on artifact metadata are false, with a warning: jobs with `retrain` fail
"""

import sys
from pathlib import Path
from typing import Any

import yaml
from kfp import components, local

_PREFIX = "comp-"
_CONFINED = {"network_mode": "none", "read_only": True, "tmpfs": {"/tmp": ""}}


def main(job: str, root: str, *parameters: str) -> None:
    """Run a job; raise the error of the runner if a task fails.

    Args:
        parameters: texts such as NAME=VALUE.
    """
    local.init(runner=local.DockerRunner(**_CONFINED), pipeline_root=root, raise_on_error=True)
    documents = list(yaml.safe_load_all(Path(job).read_text()))
    job_with_names = yaml.safe_dump_all([rename_components(documents[0]), *documents[1:]])
    components.load_component_from_text(job_with_names)(**dict(text.split("=", 1) for text in parameters))


def rename_components(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the PipelineSpec with components named as the SDK names them."""
    if all(name.startswith(_PREFIX) for name in spec["components"]):
        return spec
    for holder in (spec["root"], *spec["components"].values()):
        for task in holder.get("dag", {}).get("tasks", {}).values():
            task["componentRef"]["name"] = _PREFIX + task["componentRef"]["name"]
    return {**spec, "components": {_PREFIX + name: component for name, component in spec["components"].items()}}


if __name__ == "__main__":
    main(*sys.argv[1:])
