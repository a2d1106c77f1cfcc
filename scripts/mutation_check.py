"""Compare how many seeded one-line faults the tests of two commits find.

    pip install pytest-cov; pytest --cov --cov-branch --cov-context=test   # in both checkouts, OLD and NEW
    python scripts/mutation_check.py draw OLD NEW -o faults.json   # draws from code that both have
    python scripts/mutation_check.py run faults.json old OLD -o old.jsonl
    python scripts/mutation_check.py run faults.json new NEW -o new.jsonl
    python scripts/mutation_check.py report old.jsonl new.jsonl

A fault is a comparison flipped, a number changed or a call removed. Each is tried on the test files that execute its
line, which the coverage data name: all of the module's folder, and up to ten others. Where no test executes the line
itself, a fixture or a process may: then the whole folder runs. `run` writes a fault into the checkout, runs the tests,
and restores the file. It continues where an interrupted call stopped.
"""

import argparse
import ast
import json
import random
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

PACKAGES = ("components", "pipelines", "schemas", "trainer_module")
FLIPPED = {
    ast.Lt: ("<", ">="), ast.GtE: (">=", "<"), ast.Gt: (">", "<="), ast.LtE: ("<=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.In: (" in ", " not in "), ast.NotIn: (" not in ", " in "),
    ast.Is: (" is ", " is not "), ast.IsNot: (" is not ", " is "),
}  # fmt: skip
SECONDS_PER_FAULT = 3600
MAX_OTHER_FILES = 10


@dataclass(frozen=True)
class Fault:
    """A changed line.

    Attributes:
        line: number of the line in `file`, from 1.
        before, after: the line without indentation.
    """

    file: str
    function: str
    line: int
    kind: str
    before: str
    after: str


def faults_in(root: Path) -> Iterator[Fault]:
    """Yield all possible faults in the functions of a checkout."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            lines = path.read_text("utf-8").split("\n")
            for function in ast.walk(ast.parse("\n".join(lines))):
                if isinstance(function, ast.FunctionDef):
                    for node in ast.walk(function):
                        for kind, changed in _changes_of(node, lines):
                            before = lines[node.lineno - 1].strip()
                            name = path.relative_to(root).as_posix()
                            yield Fault(name, function.name, node.lineno, kind, before, changed.strip())


def _changes_of(node: ast.AST, lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the kind of a change and the changed line; nothing for a node of several lines."""
    if getattr(node, "lineno", 0) != getattr(node, "end_lineno", None):
        return
    line = lines[node.lineno - 1]
    if not line.isascii():
        return  # columns count bytes
    start, end = node.col_offset, node.end_col_offset
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and node.left.end_lineno == node.lineno:
        before, after = FLIPPED[type(node.ops[0])]
        operator = line[node.left.end_col_offset : node.comparators[0].col_offset]
        changed = operator.replace(before, after, 1)
        yield "comparison", line[: node.left.end_col_offset] + changed + line[node.comparators[0].col_offset :]
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield "constant", f"{line[:start]}{node.value + 1}{line[end:]}"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield "call", line[:start] + "pass" + line[end:]


def draw(old: Path, new: Path, seed: int, count: int) -> list[dict[str, Fault]]:
    """Draw as many faults of each kind, whose line a function of the same name in both checkouts has once."""
    by_key: list[dict[tuple[str, ...], list[Fault]]] = []
    for root in (old, new):
        keys: dict[tuple[str, ...], list[Fault]] = {}
        for fault in faults_in(root):
            keys.setdefault((fault.function, fault.before, fault.after), []).append(fault)
        by_key.append(keys)
    pairs = [
        {"old": faults[0], "new": by_key[1][key][0]}
        for key, faults in sorted(by_key[0].items())
        if len(faults) == 1 == len(by_key[1].get(key, ()))
    ]
    generator = random.Random(seed)  # noqa: S311 - a repeatable choice
    drawn = []
    for kind in ("comparison", "constant", "call"):
        drawn += generator.sample([pair for pair in pairs if pair["old"].kind == kind], count // 3)
    return drawn


def tests_of(fault: Fault, root: Path, coverage_file: Path) -> list[str]:
    """Return the test files that execute the line, those of the module's folder first; that folder if none does."""
    from coverage import CoverageData

    data = CoverageData(str(coverage_file))
    data.read()
    contexts = data.contexts_by_lineno(str(root / fault.file)).get(fault.line, [])
    files = sorted({context.partition("::")[0] for context in contexts if context.startswith("tests/")})
    module = Path(fault.file)
    folders = [folder for folder in (module.parent, *module.parents[1:-1]) if (root / "tests" / folder).is_dir()]
    folder = f"tests/{folders[0]}/" if folders else "tests/"
    own = [file for file in files if file.startswith(folder)]
    others = [file for file in files if file not in own]
    return own + others[:MAX_OTHER_FILES] or [folder]


def is_found(fault: Fault, root: Path, tests: list[str]) -> tuple[bool, str]:
    """Return whether the tests notice a fault, and the end of their output. The file is restored."""
    path = root / fault.file
    text = path.read_text("utf-8")
    lines = text.split("\n")
    assert lines[fault.line - 1].strip() == fault.before, f"{path}:{fault.line} has changed"
    indentation = lines[fault.line - 1][: len(lines[fault.line - 1]) - len(lines[fault.line - 1].lstrip())]
    lines[fault.line - 1] = indentation + fault.after
    command = [root / ".venv/bin/pytest", "-x", "-q", "--timeout", "300", "-p", "no:cacheprovider", *tests]
    try:
        path.write_text("\n".join(lines), "utf-8")
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=SECONDS_PER_FAULT, check=False)
        return done.returncode != 0, done.stdout[-300:]
    except subprocess.TimeoutExpired:
        return True, f"not finished after {SECONDS_PER_FAULT} s"
    finally:
        path.write_text(text, "utf-8")


def run(args: argparse.Namespace) -> None:
    root = args.checkout.resolve()
    faults = [Fault(**pair[args.side]) for pair in json.loads(args.faults.read_text())]
    done = {result["index"] for result in _read(args.output)}
    for index, fault in enumerate(faults):
        if index in done:
            continue
        tests = tests_of(fault, root, args.coverage or root / ".coverage")
        start = time.monotonic()
        found, output = is_found(fault, root, tests)
        seconds = round(time.monotonic() - start)
        row = {"index": index, "found": found, "tests": len(tests), "seconds": seconds, "end": output}
        with args.output.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{index}: {'found' if found else 'SURVIVED'} {fault.file}:{fault.line} in {seconds} s", flush=True)


def _read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def report(args: argparse.Namespace) -> None:
    for path in args.results:
        results = _read(path)
        print(f"{path}: {sum(result['found'] for result in results)} of {len(results)} faults found")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("draw")
    one.add_argument("old", type=Path)
    one.add_argument("new", type=Path)
    one.add_argument("--seed", type=int, default=45)
    one.add_argument("--count", type=int, default=60)
    one.add_argument("-o", "--output", type=Path, required=True)
    one.set_defaults(do=write_drawn)
    two = commands.add_parser("run")
    two.add_argument("faults", type=Path)
    two.add_argument("side", choices=("old", "new"))
    two.add_argument("checkout", type=Path)
    two.add_argument("-o", "--output", type=Path, required=True)
    two.add_argument("--coverage", type=Path, help="default: .coverage in the checkout")
    two.set_defaults(do=run)
    three = commands.add_parser("report")
    three.add_argument("results", type=Path, nargs="+")
    three.set_defaults(do=report)
    args = parser.parse_args()
    args.do(args)


def write_drawn(args: argparse.Namespace) -> None:
    drawn = draw(args.old, args.new, args.seed, args.count)
    args.output.write_text(
        json.dumps([{side: asdict(fault) for side, fault in pair.items()} for pair in drawn], indent=1)
    )


if __name__ == "__main__":
    main()
