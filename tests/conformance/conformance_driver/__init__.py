"""Execute a compiled job on this machine, task by task, by the rules of its backend.

A container's command runs as a process, or as a `Runner` decides; the driver does everything else (order, inputs,
conditions, caching, retries, storage, the exit handler) as the backend does. The docstring of each module gives the
source of its assumptions about a backend:

    kubeflow/pipelines         backend/src/v2/{driver,component,metadata,cacheutils,expression,compiler}, August 2026
    argoproj/argo-workflows    workflow/controller/{dag,operator,exit_handler}.go, August 2026
    Vertex AI Pipelines        is closed source: api/v2alpha1/pipeline_spec.proto of kubeflow/pipelines, TFX's
                               container code (tfx/orchestration/kubeflow/v2) and Google's documentation

The driver refuses features that our jobs never use: loops, output parameters, workspaces.

    read_job(text, "kubeflow")                           checks the job as the backend does at submission
    Machine(home, SubprocessRunner(home / "logs"))       keeps metadata and buckets for later runs
    run_job(job, machine) -> RunResult
"""
