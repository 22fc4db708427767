"""Lazy doors: type checkers, the table and the modules agree, and a door behaves as if it had imported its names."""

import ast
import importlib
import pickle
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import cloudpickle
import pytest

import shardex
from shardex.lazy_door import LazyDoor
from shardex.workers import unknown_objects

PACKAGE = Path(shardex.__file__).parent
DOORS = [
    ".".join(["shardex", *path.parent.relative_to(PACKAGE).parts])
    for path in sorted(PACKAGE.rglob("__init__.py"))
    if "import_later(" in path.read_text("utf-8")
]
OPEN_AND_READ = """
import sys
import shardex as sx
sx.open(sys.argv[1])[0]
print(len([name for name in sys.modules if name.partition(".")[0] == "shardex"]))
"""


def door(name: str) -> LazyDoor:
    found = importlib.import_module(name)
    assert isinstance(found, LazyDoor)
    return found


def test_some_doors_are_lazy() -> None:
    assert {"shardex", "shardex.dataset", "shardex.sources", "shardex.media"} < {*DOORS}


@pytest.mark.parametrize("name", DOORS)
def test_names_for_type_checkers_are_those_of_the_table(name: str) -> None:
    tree = ast.parse(Path(str(door(name).__file__)).read_text("utf-8"))
    (block,) = (one for one in tree.body if isinstance(one, ast.If) and "TYPES" in ast.unparse(one.test))
    known = {
        alias.asname or alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module != name
        for alias in node.names
    }
    assert known == {one: f"{name}.{module}" for one, module in door(name)._module_of.items() if module}
    assert all(hasattr(importlib.import_module(name), one) for one in door(name).__all__)


@pytest.mark.parametrize("name", DOORS)
def test_each_name_is_that_of_its_module(name: str) -> None:
    found = door(name)
    for one, module in found._module_of.items():
        inner = importlib.import_module(f"{name}.{module or one}")
        assert getattr(found, one) is (getattr(inner, one) if module else inner)
        assert vars(found)[one] is getattr(found, one), "the second use finds it without a search"
    assert {*found._module_of} <= {*dir(found)}


def test_a_name_is_not_the_module_of_the_same_name() -> None:
    code = (
        "import shardex.dataset.open, shardex.dataset as d; assert callable(d.open) and callable(shardex.dataset.open)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_names_raise() -> None:
    with pytest.raises(AttributeError, match=r"module 'shardex\.media' has no attribute 'nothing'"):
        _ = door("shardex.media").nothing
    with pytest.raises(ImportError, match="nothing"):
        exec("from shardex.media import nothing")


def test_submodules_can_be_imported_by_name() -> None:
    from shardex.media import audio

    assert type(audio) is ModuleType


@pytest.mark.parametrize("name", ["shardex", "shardex.media"])
def test_doors_are_pickled_by_name(name: str) -> None:
    assert pickle.loads(cloudpickle.dumps(door(name))) is door(name)


def test_doors_in_functions_have_a_fingerprint() -> None:
    def size() -> object:
        return shardex

    assert not unknown_objects(size)


def test_opening_a_dataset_imports_few_modules(tmp_path: Path) -> None:
    shardex.write(tmp_path / "ds", [{"x": 1, "name": "a"}])
    command = [sys.executable, "-c", OPEN_AND_READ, str(tmp_path / "ds")]
    shown = subprocess.run(command, check=True, capture_output=True, text=True)
    assert int(shown.stdout) <= 130
