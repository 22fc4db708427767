"""Joining the parts of a job: numbers of shards, files that describe them."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardex.errors import SchemaError
from shardex.features import Features
from shardex.formats.join_shards import JoinShards
from shardex.jobs import FinishedPart, JobFolder


def part(folder: JobFolder, number: int, files: dict[str, str]) -> FinishedPart:
    inner = folder.new_part(number)
    for name, text in files.items():
        folder.place.put(f"{inner}/{name}", text.encode())
    return folder.finish(number, FinishedPart(inner, sorted(files), rows=1))


def join(folder: JobFolder, parts: list[FinishedPart], target: Path) -> None:
    owned, last = r".*\.(txt|json)", ("head.json",)
    JoinShards(owned, ".txt", publish_last=last)(folder, parts, str(target), Features.of({"x": int}), mode="create")


def test_shards_are_numbered_on(tmp_path: Path) -> None:
    folder = JobFolder(str(tmp_path / "out"), "00")
    first = part(folder, 0, {"part-00000.txt": "a", "part-00001.txt": "b", "head.json": "{}"})
    second = part(folder, 1, {"part-00000.txt": "c", "part-00000.lengths.txt": "d", "head.json": "{}"})
    join(folder, [first, second], tmp_path / "out")
    found = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    names = ["part-00000.txt", "part-00001.txt", "part-00002.txt", "part-00002.lengths.txt", "head.json"]
    assert found == dict(zip(names, ["a", "b", "c", "d", "{}"], strict=True))


def test_parts_with_different_descriptions(tmp_path: Path) -> None:
    folder = JobFolder(str(tmp_path / "out"), "00")
    parts = [part(folder, number, {"part-00000.txt": "a", "head.json": f"{number}"}) for number in range(2)]
    with pytest.raises(SchemaError, match=r"expected the same head\.json in all parts"):
        join(folder, parts, tmp_path / "out")
    assert not (tmp_path / "out").exists()
