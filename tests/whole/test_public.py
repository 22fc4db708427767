"""The public names of `import shardex`, and the packages that it must not import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import shardex

LAZY = {
    "PIL",
    "datasets",
    "asyncio",
    "av",
    "duckdb",
    "http.client",
    "obstore",
    "pandas",
    "polars",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "ray",
    "redis",
    "simplejpeg",
    "soundfile",
    "ssl",
    "torch",
    "webdataset",
}
MODULES = ("media", "ray", "store", "testing")


def test_dir_shows_the_public_names() -> None:
    shown = {name for name in dir(shardex) if not name.startswith("_")}
    assert shown == {*shardex.__all__, *MODULES} and len(shardex.__all__) <= 56


@pytest.mark.parametrize(
    "name", [name if name != "ray" else pytest.param("ray", marks=pytest.mark.needs("ray")) for name in MODULES]
)
def test_modules_have_sorted_documented_names(name: str) -> None:
    module = getattr(shardex, name)
    assert module.__all__ == sorted(module.__all__)
    assert all(getattr(module, one).__doc__ for one in module.__all__)


def test_names_that_moved_say_where_to() -> None:
    moved = {"Resize": r"sx\.media\.Resize", "history": r"sx\.store\.history", "from_arrow": r"open\(table\)"}
    for name, where in moved.items():
        with pytest.raises(AttributeError, match=f"module 'shardex' has no attribute '{name}': use {where}"):
            getattr(shardex, name)


def test_all_is_sorted() -> None:
    assert list(shardex.__all__) == sorted(shardex.__all__)


def names_for_type_checkers() -> dict[str, str]:
    """Return the names that the package imports for type checkers only, and their rooms."""
    tree = ast.parse(Path(shardex.__file__).read_text("utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module != "shardex"]
    return {one.name: str(node.module) for node in imports for one in node.names}


def test_all_is_complete() -> None:
    known = names_for_type_checkers()
    assert list(shardex.__all__) == sorted(known)
    for name, room in known.items():
        assert getattr(shardex, name) is getattr(sys.modules[room], name)
        assert vars(shardex)[name] is getattr(shardex, name), "the second use finds it without a search"


@pytest.mark.parametrize("name", shardex.__all__)
def test_every_name_is_documented(name: str) -> None:
    text = getattr(shardex, name).__doc__
    assert text, f"shardex.{name} has no docstring"
    assert not text.startswith(f"{name}("), f"shardex.{name} has only the docstring that dataclass makes"


def test_import_loads_nothing_heavy() -> None:
    code = "import sys; from shardex import *; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not (LAZY | {"numpy.ma", "numpy.random"}) & set(done.stdout.split())


def test_a_room_is_imported_when_it_is_used() -> None:
    code = """
import sys, shardex
assert {name for name in sys.modules if name.startswith(("shardex.", "numpy", "pyarrow"))} == {"shardex.lazy_door"}
shardex.Ragged
assert "shardex.kernel" in sys.modules and "shardex.features" not in sys.modules
shardex.features.Text
assert "shardex.dataset" not in sys.modules
shardex.workers, shardex.columns.arrow_types, shardex.errors
from shardex import cli
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_reading_a_native_dataset_imports_no_masked_arrays(tmp_path: Path) -> None:
    """`np.unique` imports `numpy.ma`, which takes longer than to open a dataset and to read a sample."""
    shardex.write(tmp_path / "d", [{"x": [1, 2], "s": "a"}] * 8, progress=False)
    code = (
        "import sys, shardex; ds = shardex.open(sys.argv[1]); ds[0], ds.read([3, 1]); print('numpy.ma' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "d"], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_sources_load_nothing_heavy() -> None:
    code = "import sys; from shardex.sources import *; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not LAZY & set(done.stdout.split())


def test_reading_through_an_index_imports_no_pandas(tmp_path: Path) -> None:
    """`pyarrow.Array.to_numpy` imports pandas; the index reads the buffers instead."""
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n' * 10)
    code = "import sys, shardex as sx; sx.open(sys.argv[1]).read([1, 2]); print('pandas' in sys.modules)"
    for _ in range(2):  # once to make the index, once to use it
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
        assert done.stdout == "False\n"


def test_editing_imports_no_pandas(tmp_path: Path) -> None:
    code = """
import sys, shardex as sx
folder = sys.argv[1] + "/d"
sx.write(folder, [{"k": k, "s": "a"} for k in range(4)], key="k", progress=False)
with sx.edit(folder) as tx:
    tx.add_field("y", "int64", range(4))
    tx.update(1, s="b")
    tx.delete(2)
    tx.append(k=9, s="c", y=1)
sx.compact(folder, progress=False)
sx.clean(folder)
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_ray_is_imported_when_it_is_used() -> None:
    code = "import sys, shardex; sys.modules['ray'] = None; shardex.ray"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingExtraError: shardex.ray needs ray, which is not installed: pip install 'shardex[ray]'" in done.stderr
    with pytest.raises(AttributeError, match="module 'shardex' has no attribute 'rays'"):
        _ = shardex.rays  # type: ignore[attr-defined]


@pytest.mark.needs("ray")
def test_ray_is_found() -> None:
    code = "import shardex; print(shardex.ray.source.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "source\n"


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        ("platform = 'win32'", "got Windows: use Linux under Windows (WSL)"),
        ("byteorder = 'big'", "got a big-endian one"),
        ("maxsize = (1 << 31) - 1", "got 32 bits: install the 64-bit build"),
    ],
)
def test_unsupported_platforms_are_told_at_the_import(change: str, advice: str) -> None:
    code = f"import sys; sys.{change}\ntry:\n    import shardex\nexcept ImportError as error:\n    print(error)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert advice in done.stdout
