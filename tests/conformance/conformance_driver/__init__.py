"""Executes a compiled job on this machine, task by task, by the rules of the backend that it was compiled for.

A container's own command runs as a process, or as whatever a `Runner` makes of it; all else that a backend does
(order, inputs, conditions, caching, retries, storage, the exit handler) is done here as it does it. What is assumed of
a backend is said with its source in the docstring of the module that relies on it:

    kubeflow/pipelines         backend/src/v2/{driver,component,metadata,cacheutils,expression,compiler}, August 2026
    argoproj/argo-workflows    workflow/controller/{dag,operator,exit_handler}.go, August 2026
    Vertex AI Pipelines        is closed: api/v2alpha1/pipeline_spec.proto of kubeflow/pipelines, TFX's container code
                               (tfx/orchestration/kubeflow/v2) and Google's documentation

What our jobs never have is refused by name: loops, output parameters, importers, workspaces.

    read_job(text, "kubeflow")                           checks the job as the backend does when it is handed in
    Machine(home, SubprocessRunner(home / "logs"))       keeps metadata and buckets, so that runs see earlier ones
    run_job(job, machine) -> RunResult
"""
