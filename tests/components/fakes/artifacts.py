"""Artifacts with custom properties."""


def make_artifact(kind, uri="", artifact_id=0, **properties):
    """Make an artifact; properties are integers and texts."""
    artifact = kind()
    artifact.uri, artifact.id = str(uri), artifact_id
    for name, value in properties.items():
        is_number = isinstance(value, int)
        set_property = artifact.set_int_custom_property if is_number else artifact.set_string_custom_property
        set_property(name, value)
    return artifact
