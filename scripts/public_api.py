"""Write tests/public_api.txt, the signatures of the public API, read from the source.

A changed line is a change for users: add a line to CHANGELOG.md, and keep to Semantic Versioning (docs/python_api.md).
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests" / "public_api.txt"
PACKAGES = {
    "detloom": ROOT / "detloom" / "__init__.py",
    "detloom.components": ROOT / "components" / "__init__.py",
    "detloom.pipelines.kfp_components": ROOT / "pipelines" / "kfp_components" / "__init__.py",
    "detloom.schemas.run_file": ROOT / "schemas" / "run_file" / "__init__.py",
}


def describe_api() -> str:
    """Return a line for each public function, method, property and field."""
    lines = []
    for package, init in PACKAGES.items():
        for name, module in sorted(public_modules(init).items()):
            lines += [f"{package}.{line}" for line in _describe(_find(name, module))]
    return "\n".join(lines) + "\n"


def public_modules(init: Path) -> dict[str, str]:
    """Return the module of each public name of a package, from its stub or its `__init__.py`."""
    stub = init.with_suffix(".pyi")
    tree = ast.parse((stub if stub.exists() else init).read_text("utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if (node.module or "").startswith("detloom.")]
    return {alias.name: str(node.module) for node in ours for alias in node.names}


def _find(name: str, module: str) -> ast.ClassDef | ast.FunctionDef:
    file = ROOT.joinpath(*module.split(".")[1:]).with_suffix(".py")
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node
    raise ValueError(f"{file}: has no class or function {name}.")


def _describe(node: ast.ClassDef | ast.FunctionDef) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef):
        yield _signature(node)
        return
    bases = ", ".join(map(ast.unparse, node.bases))
    yield f"{node.name}({bases})" if bases else node.name
    for member in node.body:
        if isinstance(member, ast.AnnAssign) and ast.unparse(member.annotation) != "ClassVar":
            yield f"{node.name}.{ast.unparse(member)}"
        elif isinstance(member, ast.FunctionDef) and (not member.name.startswith("_") or member.name == "__init__"):
            yield f"{node.name}.{_signature(member)}"


def _signature(node: ast.FunctionDef) -> str:
    marks = "".join(f"  @{ast.unparse(each)}" for each in node.decorator_list)
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{node.name}({ast.unparse(node.args)}){result}{marks}"


if __name__ == "__main__":
    RECORD.write_text(describe_api(), "utf-8")
    sys.stdout.write(f"Wrote {RECORD}. If a line changed, add a line to CHANGELOG.md.\n")
