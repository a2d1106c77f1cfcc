"""Names of inputs, outputs, properties and files that several components share, and typed access to properties.

Imports no TFX, so that commands can use the names. Names of TFX's own inputs and outputs are in
`tfx.types.standard_component_specs`.
"""

import dataclasses
import json
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from detloom.schemas.contracts.runtime_names import FORM_SAVED_MODEL
from detloom.schemas.errors import InputError
from detloom.schemas.reading.typed_dict import dataclass_members, from_json, to_canonical_json

if typing.TYPE_CHECKING:
    from tfx.types.artifact import Artifact

_Params = typing.TypeVar("_Params", bound="ComponentParams")

# Inputs and outputs.
DATASET_REPORT_KEY = "dataset_report"
DECISION_KEY = "decision"
METRICS_KEY = "metrics"
MODEL_CARD_KEY = "model_card"
MODEL_RUN_KEY = "model_run"
PAGE_KEY = "page"
REJECTS_KEY = "rejects"

# Files and folders in artifacts.
DATASET_REPORT_FILE = "report.json"

# Execution property of every node of this package; see `ComponentParams`.
CODE_FINGERPRINT = "code_fingerprint"
# TFX's type of a property by the type of its field; all others are texts. TFX has no type for a truth value.
_NUMBERS: dict[Any, type] = {bool: int, int: int, float: float}
_FILLED_IN = (CODE_FINGERPRINT, "trainer_fingerprint", "run_name", "run_id")  # by the constructors and by backends

# Custom properties of examples (tfx/components/example_gen/utils.py) and of data set reports.
SPAN_PROPERTY = "span"
VERSION_PROPERTY = "version"
FINGERPRINT_PROPERTY = "input_fingerprint"

# Custom properties of a blessing.
BLESSING_MESSAGE = "blessing_message"  # a sentence with the reason; TFX 1.16 and later write it too
BLESSED_DIGEST = "blessed_digest"  # `Manifest.digest` of the model's files that were evaluated
BLESSED_FORMS = "blessed_forms"  # JSON: names of the forms of the model that were evaluated
BLESSING_METRICS = "blessing_metrics"  # JSON: main metrics by name, for the push record

# Custom properties of a pushed model: the first three are from tfx/components/pusher/executor.py.
PUSHED_PROPERTY = "pushed"
PUSHED_DESTINATION_PROPERTY = "pushed_destination"
PUSHED_VERSION_PROPERTY = "pushed_version"  # empty for an endpoint
PUSHED_IS_NEW_PROPERTY = "pushed_is_new"  # 0 if the latest version already was this model

TRAIN_PROPERTY = "train"  # custom property of a retraining decision: 1 or 0; 1 also if a model is evaluated again
REUSED_PROPERTY = "reused"  # custom property of a retraining decision: JSON, address by output of the Trainer
REASON_PROPERTY = "reason"  # custom property of a retraining decision, and of a blessed model that was not pushed

ADDRESS_PROPERTY = "address"  # custom property of an input in a container, which reads a local copy: where it really is
NOTHING_FOUND = "nothing_found"  # custom property: 1 on a placeholder output, for backends that require an artifact


def int_property(artifact: "Artifact", name: str) -> int | None:
    """Return an integer custom property, or None if the artifact does not have it."""
    return int(artifact.get_int_custom_property(name)) if artifact.has_custom_property(name) else None


def string_property(artifact: "Artifact", name: str) -> str | None:
    """Return a text custom property, or None if the artifact does not have it."""
    return str(artifact.get_string_custom_property(name)) if artifact.has_custom_property(name) else None


def address_of(artifact: "Artifact") -> str:
    """Return the address of an artifact, also of one whose `uri` is a local copy in a container."""
    return string_property(artifact, ADDRESS_PROPERTY) or str(artifact.uri)


def blessing_message(blessings: "Sequence[Artifact] | None", default: str = "The model was not blessed.") -> str:
    """Return the sentence that says why the model was or was not blessed."""
    messages = [string_property(blessing, BLESSING_MESSAGE) for blessing in blessings or ()]
    return next((message for message in messages if message is not None), default)


def blessed_digest(input_dict: "Mapping[str, list[Artifact]]") -> str:
    """Return the digest of the files that a Pusher's blessing names.

    It is empty for the blessing of another evaluator, and if TFX's InfraValidator adds files to what is pushed.
    """
    blessings = () if input_dict.get("infra_blessing") else input_dict.get("model_blessing") or ()
    return next((string_property(blessing, BLESSED_DIGEST) or "" for blessing in blessings), "")


def blessed_forms(blessing: "Artifact") -> list[str]:
    """Return the forms of the model that were evaluated; another evaluator evaluates the SavedModel."""
    return list(json.loads(string_property(blessing, BLESSED_FORMS) or f'["{FORM_SAVED_MODEL}"]'))


def blessing_metrics(blessing: "Artifact") -> dict[str, float]:
    """Return the main metrics by name; empty if another evaluator blessed the model."""
    try:
        metrics = json.loads(string_property(blessing, BLESSING_METRICS) or "{}")
        return {str(name): float(value) for name, value in metrics.items()}
    except (ValueError, TypeError, AttributeError):
        return {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComponentParams:
    """Base of a component's parameters, whose fields are TFX execution properties of the same name.

    Texts and numbers are unchanged. Other values become JSON (dataclasses canonical JSON), and None becomes "".

    Attributes:
        code_fingerprint: fingerprint of the node's source; not read, but it invalidates TFX's cache when the code
            changes.
    """

    code_fingerprint: str = ""

    @classmethod
    def property_types(cls) -> dict[str, type]:
        """Return the type of each execution property."""
        hints = typing.get_type_hints(cls)
        return {item.name: _NUMBERS.get(hints[item.name], str) for item in dataclasses.fields(cls)}

    def to_properties(self) -> dict[str, Any]:
        """Return flat values for TFX.

        Raises:
            InputError: a section has a value of another type than declared, with its key.
        """
        types = self.property_types()
        properties = {
            item.name: _encode(item.name, getattr(self, item.name), types[item.name])
            for item in dataclasses.fields(self)
        }
        self.from_properties(properties)  # raises here what the node would raise
        return properties

    @classmethod
    def from_properties(cls: type[_Params], properties: Mapping[str, Any]) -> _Params:
        """Invert `to_properties`; ignore other properties, which TFX adds.

        Raises:
            KeyError: if a property without a default is missing.
        """
        hints = typing.get_type_hints(cls)
        return cls(
            **{
                item.name: _decode(item.name, properties[item.name], hints[item.name])
                for item in dataclasses.fields(cls)
                if item.name in properties or item.default is item.default_factory is dataclasses.MISSING
            }
        )


def arguments_of(params: Any) -> dict[str, Any]:
    """Return the fields of a component's parameters as its keyword arguments, without those that it fills in."""
    names = (item.name for item in dataclasses.fields(params))
    return {name: getattr(params, name) for name in names if name not in _FILLED_IN}


def _encode(name: str, value: Any, property_type: type) -> str | int | float:
    if value is None:
        return ""
    if property_type is not str:
        number: int | float = property_type(value)
        return number
    if isinstance(value, str):
        return value
    try:
        return to_canonical_json(value) if dataclasses.is_dataclass(value) else json.dumps(value)
    except TypeError as error:
        raise InputError(f"{name}: {error}; use the classes of detloom.schemas.run_file.") from None


def _decode(name: str, value: Any, annotation: Any) -> Any:
    """Convert a property to the type of its field; TFX may return None for an empty text."""
    if classes := dataclass_members(annotation):
        is_none = not value and type(None) in typing.get_args(annotation)
        return None if is_none else from_json(classes[0], value, where=name)
    if typing.get_origin(annotation) is tuple:
        return tuple(json.loads(value))
    if typing.get_origin(annotation) is dict:
        return json.loads(value)
    return annotation(value) if annotation in _NUMBERS else value or ""


def pipeline_name(context: Any) -> str:
    """Return the name of the pipeline from an executor's context; empty where it is unknown, as in a container."""
    info = getattr(context, "pipeline_info", None)
    return str(getattr(info, "id", "") or "")
