"""The distribution strategy: the devices on which training runs.

It is not part of `TrainEvalConfig`, whose hash identifies the model: the same run may start on one GPU and continue on
four. It is an argument of `train(...)`, `--strategy` on the command line, and `trainer.strategy` in a run file. The
environment variable `DETLOOM_STRATEGY` overrides the run file, because devices depend on the machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from detloom.schemas.errors import check
from detloom.schemas.reading.typed_dict import from_dict
from detloom.schemas.reading.yaml_file import parse_yaml

StrategyKind = Literal["auto", "one_device", "mirrored", "multi_worker", "tpu"]
GPUS_VARIABLE = "DETLOOM_GPUS"  # number of GPUs that a job requests for each machine; training refuses fewer
STRATEGY_VARIABLE = "DETLOOM_STRATEGY"  # a kind, or a mapping: {kind: mirrored, devices: ["GPU:0", "GPU:1"]}
_FIELDS_OF = {"mirrored": ("devices",), "multi_worker": ("communication",), "tpu": ("name", "project", "zone")}


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """Devices on which training runs."""

    kind: StrategyKind = "auto"
    """`one_device`, `mirrored` (several devices of one machine), `multi_worker` (several machines) or `tpu`. `auto`
    selects several machines if the environment names them, else a TPU if the environment names one, else all GPUs, else
    the CPU."""
    devices: tuple[str, ...] = ()
    """With `mirrored`: TensorFlow device names, such as `GPU:0`; empty uses all GPUs, or all logical CPUs if there is
    no GPU."""
    communication: Literal["auto", "ring", "nccl"] = "auto"
    """With `multi_worker`: method of summing gradients; NCCL needs GPUs."""
    name: str = ""
    """With `tpu`: name of the TPU; empty uses the TPU attached to this machine or named by TPU_NAME."""
    project: str = ""
    """With `tpu`: Google Cloud project of the TPU; empty uses this machine's project."""
    zone: str = ""
    """With `tpu`: zone of the TPU; empty uses this machine's zone."""

    def __post_init__(self) -> None:
        for kind, fields in _FIELDS_OF.items():
            for field in fields:
                value = getattr(self, field)
                is_unused = self.kind != kind and value != type(self).__dataclass_fields__[field].default
                check(not is_unused, field, repr(value), f"nothing with kind '{self.kind}'", "kind")
        are_unique = all(self.devices) and len(set(self.devices)) == len(self.devices)
        check(are_unique, "devices", list(self.devices), "different names such as GPU:0")


def effective_strategy(strategy: Strategy, environment: Mapping[str, str]) -> Strategy:
    """Return the strategy in DETLOOM_STRATEGY if it is set, otherwise `strategy`.

    Raises:
        InputError: if the value of the variable is invalid.
    """
    text = environment.get(STRATEGY_VARIABLE, "").strip()
    if not text:
        return strategy
    data = parse_yaml(text, STRATEGY_VARIABLE)[0] if text.startswith("{") else {"kind": text}
    return from_dict(Strategy, data, locate=lambda _: STRATEGY_VARIABLE)
