"""python one_core.py CONFIG_JSON: prints the share of step time on one core spent waiting for images in memory."""

import os
import sys
from pathlib import Path

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})

import training_parts  # noqa: E402

from detloom.schemas.model.config import TrainEvalConfig  # noqa: E402
from detloom.schemas.reading.typed_dict import from_json  # noqa: E402

steps, iterator = training_parts.make_steps(from_json(TrainEvalConfig, Path(sys.argv[1]).read_text(encoding="utf-8")))
steps.run(iterator, 2)  # the first call traces
result = steps.run(iterator, 20)
print(result.input_seconds / result.seconds)
