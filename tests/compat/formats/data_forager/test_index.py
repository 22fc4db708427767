"""Index files of data-forager for files anywhere."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import shardex as sx
from shardex.compat.formats.data_forager.index import (
    IndexRecord,
    IndexTable,
    find_lines_of,
    load_locations,
    load_schema,
    open_samples,
    state_of,
)
from shardex.compat.formats.data_forager.samples import resolved
from shardex.errors import SchemaError
from shardex.files import Stage
from shardex.sources import LocalSource


def make_index(folder: Path, paths: list[str], dtype: str | None = None) -> None:
    """Index the lines of files in a folder next to them."""
    stage = Stage(folder / "index", "create")
    table = IndexTable(stage)
    for path, found in find_lines_of(paths, "test"):
        table.add_many(table.number(os.path.relpath(path, folder)), found["offset"], found["length"])
    table.finish(record=IndexRecord([state_of(path) for path in paths], dtype))
    stage.publish()


def test_samples_are_read_as_bytes(tmp_path: Path) -> None:
    contents = [b"one\r\n\ntwo", b"a\n"]
    paths = [str(tmp_path / name) for name in ("b.txt", "a.txt")]
    for path, content in zip(paths, contents, strict=True):
        Path(path).write_bytes(content)
    make_index(tmp_path, paths)
    names, table = load_locations(str(tmp_path / "index"))
    assert names == ["b.txt", "a.txt"] and load_schema(str(tmp_path / "index")) is None
    rows = open_samples(paths, table, IndexRecord.read(LocalSource(tmp_path / "index")))
    assert rows.read_bytes(np.array([3, 0, 1, 2])) == [b"a\n", b"one\r\n", b"\n", b"two"]
    assert rows.record(2).tobytes() == b"two" and rows.location(2) == f"{paths[0]}, line 3"


@pytest.mark.parametrize("content", [b"", b"\n", b"a\r", b"a\r\r\n\r\n", b"\r\n a", b"\xef\xbb\xbfa\nb"])
def test_lines_with_their_ends_are_the_whole_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    ((_, found),) = find_lines_of([str(path)], "test")
    lines = [content[o : o + n] for o, n in zip(found["offset"].tolist(), found["length"].tolist(), strict=True)]
    expected = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    assert lines == [line + b"\n" for line in expected[:-1]] + ([expected[-1]] if expected[-1] else [])


def test_tables_are_written_in_several_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardex.compat.formats.data_forager.index.ENTRIES_AT_ONCE", 3)
    stage = Stage(tmp_path / "index", "create")
    table = IndexTable(stage)
    for k in range(5):
        table.add(table.number("a"), k, 1)
    table.add_many(table.number("b"), np.arange(7), np.ones(7, np.uint8))
    table.add(table.number("a"), 5, 1)
    table.finish()
    stage.publish()
    names, places = load_locations(str(tmp_path / "index"))
    assert names == table.names == ["a", "b"]
    assert places.tolist() == [*([0, k, 1] for k in range(5)), *([1, k, 1] for k in range(7)), [0, 5, 1]]


def test_the_dtype_in_a_record_is_known_to_open(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(np.array([10, 266], "<u2").tobytes())  # a newline, and one more
    make_index(tmp_path, [str(tmp_path / "a.bin")], "uint8")
    assert [one["tokens"].tolist() for one in sx.open(tmp_path)] == [[10], [0, 10], [1]]
    with pytest.raises(SchemaError, match=r"expected uint8, as index/shardex.json says"):
        sx.open(tmp_path, dtype="uint16")


def test_names_of_earlier_versions_are_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tmp_path / "x" / "data"
    (base / "sub").mkdir(parents=True)
    (base / "sub" / "a").touch()
    expected = str(base / "sub" / "a")
    names = ["sub/a", "data/sub/a", "x/data/sub/a", "./data/sub/a", expected, "../data/sub/a"]
    assert [resolved(str(base), name) for name in names] == [expected] * len(names)
    monkeypatch.chdir(base / "sub")
    assert resolved(str(base), "a") == expected
    assert resolved(str(base), "none") == str(base / "none")
