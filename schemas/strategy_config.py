"""On which devices training runs.

It is not part of `TrainEvalConfig`: that tree says what model comes out, and its hash is that model's; the same run may
begin on one GPU and go on with four. So it is an argument of `train(...)`, `--strategy` on the command line,
`trainer.strategy` in a run file, and above the file the environment variable `DETLOOM_STRATEGY`, because a machine
knows its devices better than a file does that was written on another.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from detloom.schemas.checks import check
from detloom.schemas.typed_dict import from_dict
from detloom.schemas.yaml_file import parse_yaml

StrategyKind = Literal["auto", "one_device", "mirrored", "multi_worker", "tpu"]
STRATEGY_VARIABLE = "DETLOOM_STRATEGY"  # a kind, or a mapping: {kind: mirrored, devices: ["GPU:0", "GPU:1"]}
_FIELDS_OF = {"mirrored": ("devices",), "multi_worker": ("communication",), "tpu": ("name", "project", "zone")}


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """On which devices training runs."""

    kind: StrategyKind = "auto"
    """One device; all or some devices of one machine; the same on several machines; a TPU. `auto` takes what there is:
    several machines if the environment names them, else a TPU if it names one, else all GPUs, else the CPU."""
    devices: tuple[str, ...] = ()
    """With `mirrored`: TensorFlow's names, such as `GPU:0`; empty for all GPUs, or all logical CPUs where there is no
    GPU."""
    communication: Literal["auto", "ring", "nccl"] = "auto"
    """With `multi_worker`: how gradients are summed; NCCL needs GPUs."""
    name: str = ""
    """With `tpu`: its name; empty for the one that is attached to this machine or that TPU_NAME names."""
    project: str = ""
    """With `tpu`: its Google Cloud project; empty for this machine's."""
    zone: str = ""
    """With `tpu`: its zone; empty for this machine's."""

    def __post_init__(self) -> None:
        for kind, fields in _FIELDS_OF.items():
            for field in fields:
                value = getattr(self, field)
                is_unused = self.kind != kind and value != type(self).__dataclass_fields__[field].default
                check(not is_unused, field, repr(value), f"nothing with kind '{self.kind}'", "kind")
        is_each_once = all(self.devices) and len(set(self.devices)) == len(self.devices)
        check(is_each_once, "devices", list(self.devices), "names such as GPU:0, each once")


def effective_strategy(strategy: Strategy, environment: Mapping[str, str]) -> Strategy:
    """What DETLOOM_STRATEGY says, if it is set; else what came in.

    Raises:
        InputError: if it cannot be read.
    """
    text = environment.get(STRATEGY_VARIABLE, "").strip()
    if not text:
        return strategy
    data = parse_yaml(text, STRATEGY_VARIABLE)[0] if text.startswith("{") else {"kind": text}
    return from_dict(Strategy, data, locate=lambda _: STRATEGY_VARIABLE)
