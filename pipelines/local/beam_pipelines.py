"""Make the Beam pipelines of commands: in this process, in several processes, or as Beam's own arguments say."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from detloom.schemas.errors import InputError

_LOGGER = logging.getLogger("detloom")


def pipeline_maker(num_workers: int, beam_args: Sequence[str] = ()) -> Callable[[], Any]:
    """Return a function that makes Beam pipelines.

    With several processes, import what they need before the call, so that they can be forked.
    """
    import apache_beam as beam
    from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions

    from detloom.pipelines.local.forked_workers import build_runner

    local = ["--direct_running_mode=in_memory"]
    runner = None
    if num_workers > 1:
        local = ["--direct_running_mode=multi_processing", f"--direct_num_workers={num_workers}"]
        runner = None if beam_args else build_runner()
    has_runner = any(argument.split("=", 1)[0] == "--runner" for argument in beam_args)
    arguments = [*([] if has_runner else local), *beam_args]
    options = PipelineOptions(arguments)
    if runner is not None:
        options.view_as(DirectOptions).direct_running_mode = None  # the mode would replace the runner's environment
    unknown = set(options.get_all_options(retain_unknown_options=True)) - set(options.get_all_options())
    if unknown:
        # Not an error: a job service may define its own options.
        _LOGGER.warning("Beam does not know the pipeline option %s", ", ".join(sorted(unknown)))

    def make() -> Any:
        try:
            return beam.Pipeline(runner, options)
        # an unknown runner, or one whose dependencies are missing
        except (ValueError, ImportError, AttributeError) as error:
            raise InputError(f"Beam arguments: {' '.join(arguments)}: {str(error)[:300]}") from None

    return make
