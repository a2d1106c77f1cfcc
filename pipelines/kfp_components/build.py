"""Build components of kfp from the functions in `steps.py`."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from kfp import dsl

from detloom.pipelines.kfp_components.steps import evaluate, ingest, push, train, validate
from detloom.schemas.errors import InputError

_COMMAND = ("python", "-m", "detloom.pipelines.kfp_components.entrypoint")


class KfpComponents(NamedTuple):
    """Components of one image. Each has the inputs and outputs of the function of its name in `kfp_components`."""

    ingest: Any
    validate: Any
    train: Any
    evaluate: Any
    push: Any


def components_of(image: str) -> KfpComponents:
    """Return container components whose tasks run in an image with detloom.

    Args:
        image: name of the image, with a tag or a digest.

    Raises:
        InputError: the name is empty.
    """
    if not image.strip():
        raise InputError("image must not be empty; name an image with detloom (make image).")
    return KfpComponents(*(_component(step, image) for step in (ingest, validate, train, evaluate, push)))


def _component(step: Callable[..., None], image: str) -> Any:
    """Return a container component with the signature and the documentation of `step`."""

    @functools.wraps(step)
    def describe_container(*_: Any, **__: Any) -> dsl.ContainerSpec:
        # The whole executor input instead of single placeholders: optional inputs need no condition in the command.
        arguments = [step.__name__, dsl.PIPELINE_TASK_EXECUTOR_INPUT_PLACEHOLDER]
        return dsl.ContainerSpec(image=image, command=list(_COMMAND), args=arguments)

    signature = inspect.signature(step).replace(return_annotation=dsl.ContainerSpec)
    describe_container.__signature__ = signature  # type: ignore[attr-defined]
    return dsl.container_component(describe_container)
