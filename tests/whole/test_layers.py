"""Imports point one way: a room imports the rooms before it in `ROOMS`, and only through their doors.

The package of a format (`PACKAGES`) is a room in a room, with a door of its own.

Files are synced in one place, which knows what that means on each system.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "shardex"
LIST = """kernel workers sources media columns features display files jobs formats native order samples layers catalog
dataset text store loader cli ray compat"""
ROOMS = {name: rank for rank, name in enumerate(LIST.split())}
FLAT = {
    "errors": -1.0,
    "lazy_door": -1.0,
    "other_names": -0.5,
    "plugins": -0.5,
    "progress": -1.0,
    "rows": 6.5,
    "testing": 99.0,
    "__init__": 100.0,
    "__main__": 99.0,
}
"""Modules outside the rooms, and between which rooms they stand: `rows` comes after `features`."""
RANKS = {**ROOMS, **FLAT}
EMPTY_WORDS = {"utils", "helpers", "common", "base", "manager", "misc"}


PACKAGES = [("formats",), ("compat", "formats")]
"""Rooms whose sub-packages have doors, which other rooms may import too."""


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


def package_of(path: tuple[str, ...]) -> tuple[str, ...]:
    """The package of a format in which a module is, or its room."""
    for room in PACKAGES:
        if path[: len(room)] == room and (PACKAGE.joinpath(*path[: len(room) + 1])).is_dir():
            return path[: len(room) + 1]
    return path[:1]


def is_allowed(own: tuple[str, ...], path: tuple[str, ...]) -> bool:
    """Whether a module may import the module at a path."""
    if path[0] != own[0]:
        return RANKS.get(path[0], 99) < RANKS[own[0]] and path == package_of(path)
    if own[:2] == ("compat", "formats") and path[:2] != own[:2]:
        return False
    to = package_of(path)
    if to in (own[:1], package_of(own)):
        return True
    return path == to and (own[0] != "formats" or package_of(own) != own[:1])


def problems(path: Path, source: str) -> Iterator[str]:
    """What is wrong with the imports of one file."""
    own, tree = path.relative_to(PACKAGE).with_suffix("").parts, ast.parse(source)
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (f"{path}:{line}: an import inside a function" for line, _ in imported(function))
    for line, names in imported(tree):
        if not is_allowed(own, tuple(names)):
            yield f"{path}:{line}: {own[0]} imports {'.'.join(names)}"


def test_imports() -> None:
    paths = sorted(PACKAGE.rglob("*.py"))
    assert len(paths) > 300
    assert not [problem for path in paths for problem in problems(path, path.read_text("utf-8"))]


def test_names_of_modules_say_something() -> None:
    """Except in compat, which has the module names of other systems."""
    names = [path.relative_to(PACKAGE).with_suffix("").parts for path in PACKAGE.rglob("*.py")]
    assert not [name for name in names if name[0] != "compat" and not EMPTY_WORDS.isdisjoint(name)]


def test_documents_and_doors_name_all_rooms_and_modules() -> None:
    contributing, architecture = (PACKAGE.parents[1] / name for name in ("CONTRIBUTING.md", "docs/architecture.md"))
    assert re.findall(r"^\| `(\w+)` \|", contributing.read_text("utf-8"), re.M) == LIST.split()
    assert re.findall(r"^\*\*(\w+)\*\*: ", architecture.read_text("utf-8"), re.M) == LIST.split()
    for room in {*ROOMS} - {"compat"}:
        names = {path.stem for path in (PACKAGE / room).glob("*.py")} - {"__init__"}
        door = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text("utf-8"))) or ""
        assert names <= {*re.findall(r"`(\w+)`", door)}, room


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


@pytest.mark.parametrize(
    ("path", "wrong", "right"),
    [
        ("formats/csv/format.py", "shardex.formats.tar.blocks", "shardex.formats.tar"),
        ("formats/lines.py", "shardex.formats.tar", "shardex.formats.record_rows"),
        ("dataset/write.py", "shardex.formats.tar.blocks", "shardex.formats.tar"),
        ("compat/formats/bins/format.py", "shardex.formats.record_rows", "shardex.formats"),
        ("compat/formats/bins/format.py", "shardex.compat.splitdataloader", "shardex.compat.formats.columns_tar"),
        ("compat/splitdataloader/x.py", "shardex.compat.formats.bins.format", "shardex.compat.formats.bins"),
        ("loader/loader.py", "shardex.compat.formats.bins", "shardex.formats.jsonl"),
    ],
)
def test_packages_of_formats_have_doors(path: str, wrong: str, right: str) -> None:
    assert len(list(problems(PACKAGE / path, f"from {wrong} import x"))) == 1
    assert not list(problems(PACKAGE / path, f"from {right} import x"))


def test_one_place_syncs_files() -> None:
    assert [path.name for path in PACKAGE.rglob("*.py") if "os.fsync" in path.read_text("utf-8")] == ["local.py"]
