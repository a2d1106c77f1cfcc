"""The generator reaches every setting."""

import dataclasses
import sys
from pathlib import Path

from detloom.schemas.reading.typed_dict import nested_dataclasses, type_hints
from detloom.schemas.run_file.run_file import RunFile

sys.path.append(str(Path(__file__).parent))  # tests are not a package

import run_file_generator as generator


def test_tables_name_existing_settings():
    assert generator.unknown_names() == set()


def test_every_setting_is_drawn_or_excluded():
    """A new setting of a type without values fails here; other new settings are drawn without a change."""
    settings, draws = generator.all_settings(), generator.Generator(0)
    for cls in nested_dataclasses(RunFile):
        for field in dataclasses.fields(cls):
            name, annotation = f"{cls.__name__}.{field.name}", type_hints(cls)[field.name]
            is_section = dataclasses.is_dataclass(annotation)  # its fields are drawn
            if name in settings - set(generator.KEPT) and not is_section:
                draws.draw(annotation, name)  # raises LookupError
