"""Imports point one way: from a room to the rooms before it in the list, and only through their doors."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "shardex"
ROOMS = [
    "kernel",
    "workers",
    "sources",
    "schema",
    "arrow",
    "files",
    "formats",
    "order",
    "samples",
    "dataset",
    "store",
    "loader",
    "cli",
]
EVERYWHERE = {"errors", "progress"}
AFTER_SCHEMA = {"rows"}  # flat modules that a room may import if it comes after `schema`
TOP = {"__init__", "__main__", "testing"}  # may import any room
EMPTY_WORDS = {"utils", "helpers", "common", "base", "manager", "misc"}
FILES = sorted(PACKAGE.rglob("*.py"))


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and module of every import of this package; a name imported from a module counts as that module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"line {node.lineno}: expected an absolute import, got a relative one"
            module = node.module or ""
            whole = [f"{module}.{alias.name}" if module == "shardex" else module for alias in node.names]
            yield from ((node.lineno, name) for name in whole if name.split(".")[0] == "shardex")
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name.split(".")[0] == "shardex")


def problems(path: Path, source: str) -> Iterator[str]:
    """What is wrong with the imports of one file."""
    own, tree = path.relative_to(PACKAGE).with_suffix("").parts[0], ast.parse(source)
    inner = [
        line for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef) for line, _ in imported(f)
    ]
    yield from (f"{path}:{line}: an import inside a function" for line in inner)
    for line, name in imported(tree):
        room, *below = name.split(".")[1:] or ["__init__"]
        if room == own or room in EVERYWHERE or own in TOP:
            continue
        if room in AFTER_SCHEMA and ROOMS.index(own) > ROOMS.index("schema"):
            continue
        if below:
            yield f"{path}:{line}: {name} is imported past the door of {room}"
        elif own in AFTER_SCHEMA and room in ("kernel", "schema"):
            continue
        elif room not in ROOMS or own not in ROOMS or ROOMS.index(room) > ROOMS.index(own):
            yield f"{path}:{line}: {own} imports {room}, which does not come before it"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports(path: Path) -> None:
    assert not list(problems(path, path.read_text("utf-8")))
    assert EMPTY_WORDS.isdisjoint(path.relative_to(PACKAGE).with_suffix("").parts)


@pytest.mark.parametrize(
    "line", ["import shardex.loader", "from shardex.store import x", "from shardex.kernel.gather import x"]
)
def test_the_rule_itself(line: str) -> None:
    assert len(list(problems(PACKAGE / "sources" / "local.py", line))) == 1
