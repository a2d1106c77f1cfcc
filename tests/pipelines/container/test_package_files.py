import pytest

from detloom.pipelines.container.package_files import file_of
from detloom.schemas.errors import InputError


def test_a_file_of_the_package_is_found_by_its_name_and_content(schema_address, schema_file):
    assert file_of(schema_address).samefile(schema_file)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("package://detloom.schemas/example_schema.pbtxt?sha256=0123456789abcdef", "holds another file"),
        ("package://detloom.schemas/no_such.pbtxt?sha256=0123456789abcdef", "no such file in this image"),
        ("package://detloom.nowhere/x.pbtxt?sha256=0123456789abcdef", "no such file in this image"),
        ("package://detloom.schemas.errors/x.pbtxt?sha256=0123456789abcdef", "no such file in this image"),
        ("package://detloom.schemas/../setup.py?sha256=0123456789abcdef", "allowed: package://MODULE/FILE"),
        ("package://os/path.py?sha256=0123456789abcdef", "allowed: package://MODULE/FILE"),
        ("package://detloom.schemas/example_schema.pbtxt", "allowed: package://MODULE/FILE"),
    ],
)
def test_anything_else_is_refused(address, message):
    with pytest.raises(InputError, match=message):
        file_of(address)
