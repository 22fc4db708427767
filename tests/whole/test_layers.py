"""Imports point one way: a room imports the rooms before it in `ROOMS`, and only through their doors.

Files are synced in one place, which knows what that means on each system.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "shardex"
LIST = """kernel workers sources media features display arrow files jobs formats native order samples dataset text store
loader cli ray compat"""
ROOMS = {name: rank for rank, name in enumerate(LIST.split())}
FLAT = {
    "errors": -1.0,
    "other_names": -0.5,
    "plugins": -0.5,
    "progress": -1.0,
    "rows": 6.5,
    "testing": 99.0,
    "__init__": 100.0,
    "__main__": 99.0,
}
"""Modules outside the rooms, and between which rooms they stand: `rows` comes after `arrow`."""
RANKS = {**ROOMS, **FLAT}
EMPTY_WORDS = {"utils", "helpers", "common", "base", "manager", "misc"}


def imported(tree: ast.AST) -> Iterator[tuple[int, list[str]]]:
    """Line and dotted path below `shardex` of every import of this package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: expected an absolute import"
            names = [f"shardex.{one.name}" for one in node.names] if node.module == "shardex" else [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        else:
            continue
        for head, *path in (name.split(".") for name in names):
            if head == "shardex":
                yield node.lineno, path or ["__init__"]


def problems(path: Path, source: str) -> Iterator[str]:
    """What is wrong with the imports of one file."""
    own, tree = path.relative_to(PACKAGE).with_suffix("").parts[0], ast.parse(source)
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (f"{path}:{line}: an import inside a function" for line, _ in imported(function))
    for line, (room, *module) in imported(tree):
        if room != own and (module or RANKS.get(room, 99) >= RANKS[own]):
            yield f"{path}:{line}: {own} imports {'.'.join([room, *module])}"


def test_imports() -> None:
    paths = sorted(PACKAGE.rglob("*.py"))
    assert len(paths) > 300
    assert not [problem for path in paths for problem in problems(path, path.read_text("utf-8"))]


def test_names_of_modules_say_something() -> None:
    """Except in compat, which has the module names of other systems."""
    names = [path.relative_to(PACKAGE).with_suffix("").parts for path in PACKAGE.rglob("*.py")]
    assert not [name for name in names if name[0] != "compat" and not EMPTY_WORDS.isdisjoint(name)]


def test_a_name_says_which_one() -> None:
    """No two classes and no modules of two rooms have one name; packages of formats are alike by design."""
    modules, classes = Counter[str](), Counter[str]()
    for path in PACKAGE.rglob("*.py"):
        room, *inner = path.relative_to(PACKAGE).with_suffix("").parts
        if room == "compat":
            continue
        modules.update(inner[:1] if not inner[1:] and inner != ["__init__"] else [])
        classes.update(node.name for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.ClassDef))
    assert not [name for name, count in (modules + classes).items() if count > 1 and not name.startswith("_")]


@pytest.mark.parametrize(
    "line", ["import shardex.loader", "from shardex.kernel.gather import x", "from shardex import x"]
)
def test_rule_finds_a_wrong_import(line: str) -> None:
    assert len(list(problems(PACKAGE / "sources" / "local.py", line))) == 1


def test_one_place_syncs_files() -> None:
    assert [path.name for path in PACKAGE.rglob("*.py") if "os.fsync" in path.read_text("utf-8")] == ["local.py"]
