"""Imports point one way: down the layers, or sideways without a cycle, and always at the top of a file."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src"

# A name stands for a module, or for a folder and all in it. A new module is added here and in CONTRIBUTING.md.
LAYERS = {
    0: {"errors", "ranges", "digest", "bars", "pool", "segments", "gather", "_gather", "_twin", "columns"},
    1: {"source", "sources"},
    2: {"features", "schema", "codec", "codecs", "fit", "rows"},
    3: {
        "beside",
        "seal",
        "scan",
        "index",
        "checksums",
        "patterns",
        "shards",
        "format",
        "layout",
        "values",
        "chunks",
        "fields",
        "mapped",
        "decoded",
        "packer",
        "arraypacker",
        "builder",
        "table",
        "attributes",
        "manifest",
        "rowids",
        "edited",
        "fragments",
        "commit",
        "hashes",
        "keys",
        "clashes",
        "keyed",
        "stored",
        "inventory",
        "remains",
        "wreck",
        "formats",
        "records",
        "extract",
        "places",
        "closing",
        "presence",
        "updates",
        "staging",
        "upload",
        "tarfiles",
        "held",
    },
    4: {
        "sample",
        "forms",
        "packable",
        "fitter",
        "narrow",
        "network",
        "lens",
        "order",
        "deal",
        "blend",
        "query",
        "sandbox",
        "sight",
        "splits",
        "search",
        "stream",
        "huggingface",
    },
    5: {
        "pace",
        "mapping",
        "typed",
        "given",
        "dataset",
        "indexing",
        "compose",
        "mixture",
        "foreign",
        "transaction",
        "newfield",
        "versions",
        "sift",
        "integrity",
        "salvage",
        "store",
        "writer",
        "exchange",
        "loading",
    },
    6: {
        "cursor",
        "stats",
        "mend",
        "plan",
        "chance",
        "identity",
        "arguments",
        "recipe",
        "loaded",
        "readahead",
        "hands",
        "arena",
        "frames",
        "worker",
        "crew",
        "tensors",
        "loader",
    },
    7: {
        "torch",
        "ray",
        "catalog",
        "catalogs",
        "cli",
        "terminal",
        "upkeep",
        "demo",
        "viewer",
        "compat",
        "testing",
    },
    8: {"__init__", "__main__"},
}
LAYER_OF = {name: layer for layer, names in LAYERS.items() for name in names}
EMPTY_WORDS = {"utils", "helpers", "common", "base", "manager", "misc"}


def module_name(path: Path) -> str:
    """`sources.local` for its file, `sources` for the folder's `__init__`, `__init__` for the package's own."""
    parts = path.relative_to(SRC / "shardex").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def layer(module: str) -> int:
    head = module.partition(".")[0]
    assert head in LAYER_OF, f"{module} has no layer: add {head!r} to LAYERS in tests/test_layers.py"
    return LAYER_OF[head]


FILES = {module_name(path): path for path in sorted((SRC / "shardex").rglob("*.py"))}


def imports(tree: ast.AST, path: Path) -> Iterator[tuple[int, str]]:
    """The line and the module of every import from this project."""
    package = path.relative_to(SRC).parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) + 1 - node.level] if node.level else ()
            origin = [*start, *filter(None, [node.module])]
            targets = [".".join([*origin, alias.name]) for alias in node.names]
        else:
            continue
        for head, *rest in (target.split(".") for target in targets):
            if head == "shardex":
                yield node.lineno, known(rest)


def known(parts: list[str]) -> str:
    """The longest beginning that names a module: a name inside a module stands for that module."""
    for end in range(len(parts), 0, -1):
        if (name := ".".join(parts[:end])) in FILES or name in LAYER_OF:
            return name
    return "__init__"


def violations(module: str, source: str, path: Path) -> Iterator[str]:
    tree, own = ast.parse(source), layer(module)
    for line, target in imports(tree, path):
        if layer(target) > own:
            yield f"{path.name}:{line}: {module} (layer {own}) imports {target} (layer {layer(target)})"
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for line, target in imports(function, path):
                yield f"{path.name}:{line}: {target} is imported inside {function.name}()"


@pytest.mark.parametrize("module", FILES)
def test_imports_point_down(module: str) -> None:
    path = FILES[module]
    assert not list(violations(module, path.read_text("utf-8"), path))


def test_imports_make_no_cycle() -> None:
    trees = {module: ast.parse(path.read_text("utf-8")) for module, path in FILES.items()}
    graph = {module: {target for _, target in imports(tree, FILES[module])} for module, tree in trees.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules import each other: {' <- '.join(error.args[1])}")


def test_names_say_what_a_file_holds() -> None:
    assert FILES, "no module was found under src/shardex"
    assert not [module for module in FILES if EMPTY_WORDS & {part.strip("_") for part in module.split(".")}]


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("import numpy", 0),
        ("from shardex.errors import ShardexError", 0),
        ("from shardex import errors, ranges", 0),
        ("from ..source import Source", 0),
        ("from .memory import MemorySource", 0),
        ("from shardex.schema import Field", 1),
        ("import shardex.loader", 1),
        ("from shardex import Loader", 1),
        ("from ..schema import Field", 1),
        ("from .. import dataset", 1),
        ("def f():\n    from shardex.errors import ShardexError", 1),
        ("if TYPE_CHECKING:\n    from shardex.dataset import Dataset", 1),
    ],
)
def test_the_rule_itself(source: str, count: int) -> None:
    path = SRC / "shardex" / "sources" / "local.py"
    assert len(list(violations("sources.local", source, path))) == count
