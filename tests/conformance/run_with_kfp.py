"""Runs a compiled job with the KFP SDK's own local runner: run_with_kfp.py JOB ROOT, by a Python that has kfp 2.17.

That runner is not the cluster's launcher, and knows less (seen in kfp 2.17.0, kfp/local):
    executor_input_utils.py      cuts five characters off components' names, which the SDK's own compiler begins with
                                 `comp-`, and then does not find the outputs of its tasks: here they are renamed
    docker_task_handler.py       mounts ROOT and nothing else, whatever the platform document says; a container that
                                 failed counts as done if it was gone before its exit code was asked for
    enhanced_dag_orchestrator.py conditions on an artifact's metadata are false, with a warning: no job with `retrain`
"""

import sys
from pathlib import Path
from typing import Any

import yaml
from kfp import components, local

_PREFIX = "comp-"
_CONFINED = {"network_mode": "none", "read_only": True, "tmpfs": {"/tmp": ""}}


def main(job: str, root: str) -> None:
    """Raises whatever the runner does when a task fails."""
    local.init(runner=local.DockerRunner(**_CONFINED), pipeline_root=root, raise_on_error=True)
    documents = list(yaml.safe_load_all(Path(job).read_text()))
    components.load_component_from_text(yaml.safe_dump_all([rename_components(documents[0]), *documents[1:]]))()


def rename_components(spec: dict[str, Any]) -> dict[str, Any]:
    """The PipelineSpec with components named as the SDK names them."""
    for holder in (spec["root"], *spec["components"].values()):
        for task in holder.get("dag", {}).get("tasks", {}).values():
            task["componentRef"]["name"] = _PREFIX + task["componentRef"]["name"]
    return {**spec, "components": {_PREFIX + name: component for name, component in spec["components"].items()}}


if __name__ == "__main__":
    main(*sys.argv[1:])
