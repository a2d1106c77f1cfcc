"""Types that the backends know by name, where TFX's compiler declares others."""

import copy

import yaml

from detloom.pipelines.compile.pipeline_spec import Spec, tasks_of

_SYSTEM = "system."
_VERSION = "0.0.1"  # of all of them, as kfp's compiler writes it


def name_system_types(spec: Spec) -> Spec:
    """`system.*` as kfp's own compiler declares it, by title and version: Vertex AI has these schemas registered."""
    edited = copy.deepcopy(spec)
    for component in edited["components"].values():
        for artifact in component.get("outputDefinitions", {}).get("artifacts", {}).values():
            declared = artifact["artifactType"]
            title = str(yaml.safe_load(declared.get("instanceSchema") or "{}").get("title", ""))
            if title.startswith(_SYSTEM):
                artifact["artifactType"] = {"schemaTitle": title, "schemaVersion": _VERSION}
    return edited


def declare_final_status(spec: Spec) -> Spec:
    """How the run ended, as a parameter of the exit handler, is declared as kfp's own compiler does for schema 2.1
    (kubeflow/pipelines, sdk/python/kfp/compiler/pipeline_spec_builder.py); TFX's declares a text."""
    edited = copy.deepcopy(spec)
    for task in tasks_of(edited).values():
        for name, source in task.get("inputs", {}).get("parameters", {}).items():
            if "taskFinalStatus" in source:
                declared = edited["components"][task["componentRef"]["name"]]["inputDefinitions"]["parameters"]
                declared[name]["parameterType"] = "TASK_FINAL_STATUS"
    return edited
