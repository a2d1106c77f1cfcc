"""List the settings of an ingestion that its command and its component for Kubeflow Pipelines have.

Separate from params.py: the documentation of fields is read with the whole run file, and the fingerprint of ingestion's
code must not depend on that.
"""

from detloom.components.example_gen.params import ExampleGenParams
from detloom.schemas.reading.field_docs import Setting, settings_of


def command_settings() -> dict[str, Setting]:
    """Return the settings by name."""
    return settings_of(ExampleGenParams, leave_out=("code_fingerprint", "max_distance", "num_spans"))
