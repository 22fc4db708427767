"""Manifests: round trips, damage raises, and of two writers only one publishes a number."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash

from shardex.errors import ChecksumError, FormatError, NotFoundError, PathError
from shardex.features import Features
from shardex.native.fragment_list import FragmentList
from shardex.native.fragments import DataFile, Fragment
from shardex.native.manifest import Manifest, encode_manifest, publish, read_manifest
from shardex.native.version_numbers import latest_version, manifest_path
from shardex.sources import LocalSource
from shardex.sources.memory import MemorySource

SCHEMA = Features.of({"x": int, "y": str})


def data_file(**changes: Any) -> DataFile:
    file = DataFile("data/0.arrow", 200, {"x": "x", "y": "y"}, foot="c" * 16, end=150, count=2, rows=3)
    return msgspec.structs.replace(file, **changes)


def manifest(*files: DataFile, **changes: Any) -> Manifest:
    made = Manifest(
        3,
        SCHEMA.to_json(),
        FragmentList([Fragment(3, list(files or [data_file()]))]),
        ids=3,
        change="create: 3 samples",
    )
    return msgspec.structs.replace(made, **changes)


def sealed(plain: Any) -> MemorySource:
    """Return a place with this manifest and its checksum."""
    raw = encode_manifest(plain) if isinstance(plain, Manifest) else msgspec.json.encode(plain)
    whole = {"xxh3": xxhash.xxh3_64_hexdigest(raw), "manifest": msgspec.Raw(raw)}
    return MemorySource({manifest_path(1): msgspec.json.encode(whole)})


def test_round_trip(tmp_path: Path) -> None:
    for place in (MemorySource(), LocalSource(tmp_path)):
        assert latest_version(place) == 0
        assert publish(place, 1, manifest())
        found = read_manifest(place, 1)
        assert msgspec.structs.replace(found, made="", commit="") == manifest(shardex=2)
        assert found.made.startswith("20")
        assert found.features == SCHEMA
        assert latest_version(place) == 1


def test_number_of_the_format() -> None:
    assert b'"foot":"cccccccccccccccc","end":150,"count":2,"rows":3}' in msgspec.json.encode(data_file())
    empty = manifest(rows=0, fragments=FragmentList())
    for made, number in ((manifest(), 2), (empty, 1)):
        place = MemorySource()
        assert publish(place, 1, made)
        found = read_manifest(place, 1)
        assert found.shardex == number and list(found.fragments) == list(made.fragments)


@pytest.mark.parametrize("number", [1, 2])
def test_datasets_of_pre_releases_are_refused(number: int) -> None:
    """Their entries of files have batches instead of the end, the count and the rows."""
    place = sealed(manifest(data_file(end=0, count=0, rows=0), shardex=number))
    with pytest.raises(FormatError, match=r"format 2, got one of format 1, .* pre-releases .* write the dataset again"):
        read_manifest(place, 1)


def test_the_highest_number_is_current() -> None:
    names = ["00000009", "00000010", "latest", "9", "000000011", "٠٠٠٠٠٠١٢"]
    place = MemorySource({f"_shardex/{name}.json": b"" for name in names} | {"other/_shardex/00000099.json": b""})
    assert latest_version(place) == 10


def test_publish_a_number_only_once() -> None:
    place = MemorySource()
    assert publish(place, 1, manifest())
    assert not publish(place, 1, manifest(change="later"))
    assert read_manifest(place, 1).change == "create: 3 samples"


def test_one_of_many_writers_publishes(tmp_path: Path) -> None:
    place = LocalSource(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        for version in range(1, 6):
            won = list(pool.map(lambda k, v=version: publish(place, v, manifest(change=f"writer {k}")), range(8)))
            assert sum(won) == 1
            assert read_manifest(place, version).change == f"writer {won.index(True)}"
    assert sorted(tmp_path.rglob("*.*")) == sorted(tmp_path / manifest_path(v) for v in range(1, 6))


def test_missing_version_raises() -> None:
    place = MemorySource()
    publish(place, 1, manifest())
    with pytest.raises(NotFoundError, match="no version 7; the current one is 1"):
        read_manifest(place, 7)


def test_flipped_byte_raises_or_changes_nothing() -> None:
    place = MemorySource()
    publish(place, 1, manifest())
    path = manifest_path(1)
    good, expected = place.files[path], read_manifest(place, 1)
    refused = 0
    for at in range(len(good)):
        for flip in (1, 2, 0x20, 0x80, 0xFF):
            place.files[path] = good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :]
            try:
                found = read_manifest(place, 1)
            except FormatError as error:
                refused += str(error).startswith("memory:/_shardex/00000001.json: expected")
            else:
                assert found == expected
    assert refused >= 5 * (len(good) - 1)  # the newline at the end may become another space


def test_truncated_manifest_raises() -> None:
    place = MemorySource()
    publish(place, 1, manifest())
    good = place.files[manifest_path(1)]
    for size in range(len(good) - 1):
        place.files[manifest_path(1)] = good[:size]
        with pytest.raises(FormatError, match="expected a manifest, got something else"):
            read_manifest(place, 1)


def test_changed_content_raises_checksum_error() -> None:
    place = MemorySource()
    publish(place, 1, manifest())
    place.files[manifest_path(1)] = place.files[manifest_path(1)].replace(b"3 samples", b"4 samples")
    with pytest.raises(ChecksumError, match="json: expected the manifest as it was written, got other bytes"):
        read_manifest(place, 1)


@pytest.mark.parametrize("path", ["../x.arrow", "/etc/passwd", "data/../../x", "C:/x", "a\\b", "", "data//x", "./x"])
def test_path_outside_the_folder_raises(path: str) -> None:
    with pytest.raises(PathError, match="json: expected a relative path inside the dataset's folder"):
        read_manifest(sealed(manifest(data_file(path=path))), 1)


@pytest.mark.parametrize("plain", [{"shardex": 3}, {"shardex": 3, "fragments": "elsewhere"}, {"shardex": 0}])
def test_newer_format_number_raises(plain: Any) -> None:
    with pytest.raises(FormatError, match=f"of format 2, got {plain['shardex']}; use a newer shardex"):
        read_manifest(sealed(plain), 1)


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        ([], "expected a manifest, got something else"),
        ({"shardex": 1}, "expected a manifest, got something else"),
        (manifest(rows=4), "expected fragments of 4 rows in all, got 3"),
        (manifest(data_file(size=149)), "expected batches inside the 149 bytes of data/0.arrow, got 150"),
        (manifest(data_file(end=0)), "expected batches inside the 200 bytes of data/0.arrow, got 0"),
        (manifest(data_file(end=-1)), "expected batches inside the 200 bytes of data/0.arrow, got -1"),
        (manifest(data_file(count=0)), "expected batches with rows in data/0.arrow, got 0 with 3 rows"),
        (manifest(data_file(count=4)), "expected batches with rows in data/0.arrow, got 4 with 3 rows"),
        (manifest(data_file(rows=2)), "expected 3 rows in data/0.arrow, got 2"),
        (manifest(data_file(fields={"x": "x"})), "expected the fields x, y in every fragment"),
        (manifest(data_file(), data_file(fields={"y": "y"})), "expected the fields x, y in every fragment"),
        (manifest(ids=2), "expected ids below 2, got a fragment of 3 from 0"),
        (manifest(overlays=[data_file(fields={"row": "row", "z": "z"})]), "expected newer values of the fields x, y"),
        (manifest(rows=1, deleted=[data_file(count=1, rows=1)]), "expected fragments of 1 rows in all"),
        (manifest(schema={"x": {"kind": "no such"}}), "expected the JSON form of a feature"),
        (manifest(schema={"x": {"kind": "value", "dtype": "object"}}), "expected"),
    ],
)
def test_contradictory_manifest_raises(plain: Any, message: str) -> None:
    with pytest.raises(FormatError, match=f"memory:/_shardex/00000001.json: .*{message}"):
        read_manifest(sealed(plain), 1)


@pytest.mark.parametrize("depth", [70, 300, 100_000])
def test_schema_of_too_many_levels_raises(depth: int) -> None:
    inner = msgspec.json.encode(SCHEMA.to_json()["x"])
    deep = b'{"kind":"sequence","feature":' * depth + inner + b"}" * depth
    raw = encode_manifest(manifest()).replace(inner, deep, 1)
    whole = b'{"xxh3":"%s","manifest":%s}' % (xxhash.xxh3_64_hexdigest(raw).encode(), raw)
    with pytest.raises(FormatError, match=r"00000001.json: expected"):
        read_manifest(MemorySource({manifest_path(1): whole}), 1)
