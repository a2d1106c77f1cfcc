import ast
import subprocess
import sys
from pathlib import Path

import pytest

from detloom.pipelines.package_fingerprint import DATA_SUFFIXES, LAYERS, package_files, package_fingerprint

ROOT = Path(__file__).parents[2]
# What a wheel of this small checkout would contain, and beside it what it would not.
PACKED = {
    "__init__.py": "'''The package.'''\n",
    "py.typed": "",
    "schemas/__init__.py": "",
    "schemas/room.py": "x = 1\n",
    "pipelines/__init__.py": "",
    "pipelines/samples/demo.yaml": "name: demo\n",
    "pipelines/pages/__init__.py": "",
    "pipelines/pages/page.html.j2": "<html>\n",
}
UNPACKED = {
    "setup.py": "",
    "tests/test_room.py": "",
    "schemas/notes.txt": "",
    "schemas/__pycache__/room.cpython-310.pyc": "",
    "pipelines/samples/make_demo.py": "",  # in a folder without __init__.py
    "pipelines/.hidden/room.yaml": "",
}


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def installed(tmp_path):
    for name, text in PACKED.items():
        write(tmp_path / "site-packages" / "detloom" / name, text)
    return tmp_path / "site-packages" / "detloom"


@pytest.fixture
def checkout(tmp_path):
    for name, text in (PACKED | UNPACKED).items():
        write(tmp_path / "checkout" / ("detloom" if name in ("__init__.py", "py.typed") else "") / name, text)
    return tmp_path / "checkout"


def test_a_checkout_and_a_wheel_of_it_have_the_same_fingerprint(installed, checkout):
    in_checkout = [checkout / "detloom", checkout]
    assert set(package_files([installed])) == set(package_files(in_checkout)) == set(PACKED)
    assert package_fingerprint([installed]) == package_fingerprint(in_checkout)


@pytest.mark.parametrize("name", ["__init__.py", "schemas/room.py", "pipelines/pages/page.html.j2"])
def test_it_changes_with_what_is_in_a_file(installed, name):
    before = package_fingerprint([installed])
    (installed / name).write_text("edited")
    assert package_fingerprint([installed]) != before


def test_it_changes_with_the_name_of_a_file(installed):
    before = package_fingerprint([installed])
    (installed / "schemas" / "room.py").rename(installed / "schemas" / "hall.py")
    assert package_fingerprint([installed]) != before


def test_it_does_not_change_with_what_a_wheel_leaves_out(checkout):
    folders = [checkout / "detloom", checkout]
    before = package_fingerprint(folders)
    for name in UNPACKED:
        (checkout / name).write_text("edited")
    assert package_fingerprint(folders) == before


def test_the_package_under_test_is_read_whole():
    files = package_files()
    assert {"__init__.py", "py.typed", "pipelines/samples/demo.yaml", "components/pages/page.html.j2"} <= set(files)
    assert len(package_fingerprint()) == 16
    assert int(package_fingerprint(), 16) >= 0


def test_the_lists_are_those_of_the_packaging():
    source = (ROOT / "setup.py").read_text()
    (suffixes,) = (
        ast.literal_eval(node.generators[0].iter)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.GeneratorExp)
    )
    assert tuple(f".{suffix}" for suffix in suffixes) == DATA_SUFFIXES
    assert f"ROOTS = {LAYERS}".replace("'", '"') in source


def test_it_needs_the_standard_library_alone():
    code = (
        "import sys; from detloom.pipelines.package_fingerprint import package_fingerprint; package_fingerprint()\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} - sys.stdlib_module_names - {'detloom'}))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "['__main__']"
