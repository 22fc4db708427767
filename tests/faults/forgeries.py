"""Native datasets that somebody forged, read in a process of its own: ``python -m tests.faults.forgeries``.

A number, text or list in a manifest, a table, a schema or a column of a small dataset is replaced by an unusual one,
and all checksums are made right again. A case is made of its number alone, so that it can be repeated.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
import xxhash

import shardex as sx
from shardex.columns.ipc import footer_size
from shardex.errors import PathError, ShardexError
from shardex.native import data_files, fragment_list
from shardex.sources import LocalSource
from tests.data_files import with_new_sums
from tests.faults.mutations import attempt, hangs, most_memory, samples

SECONDS = 20
"""A case that takes longer hangs."""
MEMORY = 3 << 30
HOSTILE: list[Any] = [
    *(0, 1, -1, 2, 7, 255, 1 << 31, -(1 << 31), 1 << 32, 1 << 46, (1 << 62) - 1, 1 << 62, (1 << 63) - 1),
    *(-(1 << 63), 1 << 63, (1 << 64) - 1, 1 << 64, 1 << 200, 0.5, 1e300, True, False, None),
    *("", "n", "row", "\0", "a\0b", "\ud800", "../x", "/etc/passwd", "C:\\x", "data/../../x", "x" * 5000, "NaN"),
    *([], {}, [[]], [0], [""], [{}], [None], {"": ""}, {"kind": "text"}, {"n": "n"}, {"\0": "\0"}, [1 << 62, -1]),
]
NUMBERS = [
    *(0, 1, 2, 3, 7, 8, -1, -2, -8, 64, 255, 4096, 1 << 31, (1 << 31) - 1, -(1 << 31), 1 << 32, 1 << 40, 1 << 46),
    *((1 << 61) - 1, 1 << 61, (1 << 62) - 1, 1 << 62, (1 << 63) - 8, (1 << 63) - 1, -(1 << 63), -(1 << 62)),
]


# -- datasets -------------------------------------------------------------------------------------------------------

SCHEMA = {
    "n": int,
    "s": str | None,
    "x": sx.Array("float32", (2, 3)),
    "v": sx.Array("int64", (None,)),
    "shaped": sx.Array("uint8", (None, None)),
    "free": sx.Array("float64"),
    "any": sx.Array(),
    "list": list[str],
    "part": sx.Struct({"a": int, "b": str | None}),
    "map": dict[str, int],
    "json": sx.Json(),
    "class": sx.ClassLabel(("cat", "dog")),
    "time": sx.Timestamp("us", "UTC"),
    "yes": sx.Optional(sx.Value("bool")),
    "money": sx.Decimal(9, 2),
    "picture": sx.Optional(sx.Image(decode=False)),
    "old": sx.Optional(sx.Array("int16", (2,))),
}


def sample(k: int) -> dict[str, Any]:
    return {
        **samples()[k % 24],
        "n": k,
        "shaped": np.full((k % 3, 2), k, np.uint8),
        "free": np.full((2,) * (k % 3), k / 2),
        "any": np.arange(k % 4, dtype="int32"),
        "list": [f"word {k}"] * (k % 3),
        "part": {"a": k, "b": None if k % 2 else "b"},
        "map": {f"key {i}": k for i in range(k % 3)},
        "json": {"k": [k, None]},
        "class": k % 2,
        "time": np.datetime64("2024-02-29", "us") + np.timedelta64(k, "h"),
        "yes": [None, True, False][k % 3],
        "money": k,
        "picture": None,
        "old": None if k % 5 else [k, k],
    }


def _plain(folder: Path) -> None:
    """Two fragments of some batches, a field in files of its own, newer values and deleted rows."""
    sx.write(folder, map(sample, range(16)), SCHEMA, shard_rows=9, progress=False)
    with sx.edit(folder, progress=False) as tx:
        tx.add_field("late", "int16", range(16))
        tx.update([2, 11], s=["newer", None], v=[[1, 2], []])
        tx.delete([0, 12])


def _keyed(folder: Path) -> None:
    """A list of fragments in a file of its own, with merged tables of keys."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"MOST_INLINE_KEYED": 3, "_FEWEST": 2}.items():
            patch.setattr(fragment_list, name, value)
        sx.write(folder, ({"k": f"key {k}", "n": k} for k in range(3)), key="k", progress=False)
        for k in range(3, 9):
            sx.write(folder, [{"k": f"key {k}", "n": k}], mode="append", progress=False)
    with sx.edit(folder, progress=False) as tx:
        tx.delete("key 1")


MODELS: dict[str, Callable[[Path], None]] = {"plain": _plain, "keyed": _keyed}


# -- manifests --------------------------------------------------------------------------------------------------------


def newest(folder: Path) -> Path:
    return max((folder / "_shardex").glob("*.json"))


def read_json(folder: Path) -> Any:
    return json.loads(newest(folder).read_bytes())["manifest"]


def write_json(folder: Path, manifest: Any) -> None:
    """Replace the newest manifest, with the checksum of what is written."""
    plain = json.dumps(manifest, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    sum = xxhash.xxh3_64_hexdigest(plain).encode()
    newest(folder).write_bytes(b'{"xxh3":"' + sum + b'","manifest":' + plain + b"}\n")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value inside a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield (*path, key)
        yield from places(one, (*path, key))


def _forge_manifest(folder: Path, rng: random.Random) -> str:
    manifest = read_json(folder)
    path = rng.choice(list(places(manifest)))
    inside = manifest
    for key in path[:-1]:
        inside = inside[key]
    before, how = inside[path[-1]], rng.randrange(6)
    if how == 0 and isinstance(inside, dict):
        del inside[path[-1]]
    elif how == 1 and isinstance(before, list):
        inside[path[-1]] = before * rng.choice([0, 2, 1000])
    elif how == 2 and isinstance(inside, dict) and isinstance(path[-1], str):
        inside[rng.choice([one for one in HOSTILE if isinstance(one, str)])] = inside.pop(path[-1])
    elif how == 3 and isinstance(before, int):
        inside[path[-1]] = before + rng.choice([-1, 1, 8])
    else:
        inside[path[-1]] = rng.choice(HOSTILE)
    write_json(folder, manifest)
    return f"{path}: {before!r:.80} -> {inside.get(path[-1]) if isinstance(inside, dict) else inside[path[-1]]!r:.80}"


# -- data files -------------------------------------------------------------------------------------------------------


def entries(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the entries of data files in a manifest."""
    if isinstance(value, dict) and {"path", "size", "foot"} <= value.keys():
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from entries(one)


def replace_file(folder: Path, path: str, data: bytes) -> None:
    """Write a data file whose blocks are as its table says, and name its foot and size in the manifest."""
    manifest = read_json(folder)
    (folder / path).write_bytes(data)
    for entry in entries(manifest):
        if entry["path"] == path:
            entry.update(size=len(data), foot=xxhash.xxh3_64_hexdigest(data[entry["end"] :]))
    write_json(folder, manifest)


def _forge_table(folder: Path, rng: random.Random) -> str:
    """Replace a number in the table at the foot of a file."""
    entry = rng.choice(list(entries(read_json(folder))))
    data = bytearray((folder / entry["path"]).read_bytes())
    size = int.from_bytes(data[entry["end"] + 16 : entry["end"] + 24], "little")
    at = entry["end"] + 8 + 8 * rng.randrange(size // 8)
    return f"{entry['path']}, table: " + _put_number(folder, entry["path"], data, at, 8, rng)


def _put_number(folder: Path, path: str, data: bytearray, at: int, size: int, rng: random.Random) -> str:
    before = int.from_bytes(data[at : at + size], "little", signed=True)
    number = rng.choice([*NUMBERS, before + 1, before - 1, before + 8, before * 2]) & (1 << 8 * size) - 1
    data[at : at + size] = number.to_bytes(size, "little")
    replace_file(folder, path, bytes(data))
    return f"byte {at}: {before} -> {number}"


def _forge_values(folder: Path, rng: random.Random) -> str:
    """Replace numbers in the batches of a file: values, offsets, validity bits, shapes, headers."""
    entry = rng.choice(list(entries(read_json(folder))))
    data = bytearray((folder / entry["path"]).read_bytes())
    for _ in range(rng.choice([1, 1, 3])):
        size = rng.choice([1, 4, 8, 8])
        at = rng.randrange(entry["end"] // size) * size
        number = rng.choice(NUMBERS) & (1 << 8 * size) - 1
        data[at : at + size] = number.to_bytes(size, "little")
    replace_values(folder, entry, bytes(data))
    return f"{entry['path']}, {size} bytes at {at}: {number}"


def replace_values(folder: Path, entry: dict[str, Any], data: bytes) -> None:
    """Write a data file with other bytes in its batches, and their checksums."""
    made, _ = with_new_sums(data, entry["path"], entry["fields"])
    replace_file(folder, entry["path"], made)


def _forge_footer(folder: Path, rng: random.Random) -> str:
    """Replace bytes in the Arrow footer of a file, where its schema and the places of its batches are."""
    entry = rng.choice(list(entries(read_json(folder))))
    data = bytearray((folder / entry["path"]).read_bytes())
    begin = len(data) - footer_size(bytes(data[-10:]), len(data), "")
    size = rng.choice([1, 1, 2, 4, 8])
    at = begin + rng.randrange(max(1, (len(data) - begin) // size)) * size
    return f"{entry['path']}, footer: " + _put_number(folder, entry["path"], data, at, size, rng)


def _exchange_files(folder: Path, rng: random.Random) -> str:
    """Let the manifest name the content of one file in the place of another."""
    manifest = read_json(folder)
    one, other = rng.choice(list(entries(manifest))), dict(rng.choice(list(entries(manifest))))
    other.update({name: one[name] for name in ("rows", "fields") if name in one and rng.random() < 0.7})
    one.clear()
    one.update(other)
    write_json(folder, manifest)
    return f"{other['path']} in another place"


def _forge_entry(folder: Path, rng: random.Random) -> str:
    """Claim that a file, or a fragment with its files, is huge."""
    manifest = read_json(folder)
    huge = [1 << 33, 1 << 40, (1 << 40) + 1, 1 << 46, 1 << 50, (1 << 62) - 1]
    changes = {name: rng.choice(huge) for name in rng.sample(["size", "end", "count", "rows"], rng.choice([2, 3, 4]))}
    one = rng.choice([*entries(manifest), *manifest["fragments"], *manifest.get("runs", [])])
    for inside in [one, *entries(one)]:
        inside.update({name: number for name, number in changes.items() if name in inside})
    if rng.random() < 0.8:
        rows = sum(one["rows"] for one in [*manifest["fragments"], *manifest.get("runs", [])])
        manifest.update(rows=rows, ids=max(rows, manifest["ids"]))
    write_json(folder, manifest)
    return f"{one.get('path', 'fragment')}: {changes}"


def _forge_columns(folder: Path, rng: random.Random) -> str:
    """Replace a file by a valid Arrow file with other columns."""
    manifest = read_json(folder)
    entry = rng.choice(list(entries(manifest)))
    old = pa.ipc.open_file(folder / entry["path"]).read_all()
    column = rng.randrange(old.num_columns)
    names, arrays, rows = list(old.schema.names), list(old.columns), len(old)
    how = rng.randrange(7)
    if how == 0:
        names[column] = rng.choice([*names, "", "other", "a\0b"])
    elif how == 1:
        del names[column], arrays[column]
    elif how == 2:
        names.append(names[column])
        arrays.append(arrays[column])
    elif how == 3:
        arrays[column] = pa.nulls(rows, arrays[column].type)
    elif how == 4:
        arrays = [one.slice(0, rows - 1) for one in arrays]
    else:
        kinds = [pa.int8(), pa.uint64(), pa.string(), pa.large_binary(), pa.null(), pa.bool_(), pa.float16()]
        kinds += [
            pa.list_(pa.int8(), 2),
            pa.large_list(pa.null()),
            pa.string_view(),
            pa.struct([]),
            pa.list_(pa.int8(), 0),
        ]
        kinds += [pa.dictionary(pa.int8(), pa.string()), pa.run_end_encoded(pa.int32(), pa.int8()), pa.decimal256(3)]
        arrays[column] = pa.nulls(rows, rng.choice(kinds))
    metadata = rng.choice([old.schema.metadata, None, {b"shardex": b"{"}, {b"shardex": b'{"n": 1}', b"\xff": b"\xff"}])
    table = pa.Table.from_arrays(arrays, names=names).combine_chunks().replace_schema_metadata(metadata)
    try:
        writer = data_files.DataFileWriter(LocalSource(folder), table.schema)
        for batch in table.to_batches():
            writer.write(batch)
        writer.finish()
        made = json.loads(msgspec.json.encode(writer.publish()))
    except (ShardexError, pa.ArrowException, AssertionError, OSError) as error:
        return f"nothing: {error}"
    path = entry["path"]
    for one in entries(manifest):
        if one["path"] == path:
            one.update({name: value for name, value in made.items() if name != "fields"})
    write_json(folder, manifest)
    return f"{path}: column {column}, {how} {names} {metadata}"


FORGE: list[Callable[[Path, random.Random], str]] = [
    _forge_manifest,
    _forge_manifest,
    _forge_table,
    _forge_values,
    _forge_values,
    _forge_footer,
    _forge_entry,
    _forge_columns,
    _exchange_files,
]


# -- reading ----------------------------------------------------------------------------------------------------------


def _reads(folder: Path) -> Iterator[Callable[[], Any]]:
    """Yield ways to read a dataset."""
    ds = sx.open(folder)
    for row in (0, 1, len(ds) // 2, len(ds) - 1):
        yield partial(ds.__getitem__, row)
    yield lambda: list(ds)
    yield lambda: [sx.open(folder)[row] for row in range(min(len(ds), 20))]
    yield lambda: ds[2:5][0]
    yield lambda: ds.read(list(range(min(len(ds), 100))))
    for name in ds.fields:
        yield partial(list, ds.select(name)[:20])
    yield lambda: ds.where('"n" > 3')
    yield ds.to_arrow
    yield lambda: ds.get("key 4")
    yield lambda: ds.fingerprint
    yield lambda: ds.shards([0])
    yield lambda: sx.store.history(folder)


def run_case(number: int, models: Path, folder: Path) -> list[str]:
    """Forge a copy of a dataset and read it in many ways; return what is wrong."""
    rng = random.Random(number)
    shutil.copytree(models / rng.choice(list(MODELS)), folder)
    what = rng.choice(FORGE)(folder, rng)
    found = list[str]()

    def read_all() -> None:
        for read in _reads(folder):
            found.append(attempt(read))

    def repair() -> None:
        shutil.rmtree(f"{folder} saved", ignore_errors=True)
        sx.recover(folder, f"{folder} saved", progress=False)

    def verify() -> None:
        try:
            sx.verify(folder, progress=False)
        except PathError:
            raise
        except ShardexError as error:
            raise AssertionError("expected problems, got an error") from error

    signal.alarm(SECONDS)
    try:
        found.append(attempt(read_all))
        found += [f"verify: {one}" for one in [attempt(verify)] if one]
        found += [f"recover: {one}" for one in [attempt(repair)] if one]
        found += [f"compact: {one}" for one in [attempt(lambda: sx.compact(folder, progress=False))] if one]
    finally:
        signal.alarm(0)
        shutil.rmtree(folder)
        shutil.rmtree(f"{folder} saved", ignore_errors=True)
    return [f"case {number}, {what}: {one}" for one in dict.fromkeys(found) if one]


def main(folder: str, first: str, count: str) -> None:
    """Run cases; print one line of JSON for each, before and after it."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, hangs)
    for name, make in MODELS.items():
        make(Path(folder, name))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    for number in range(int(first), int(first) + int(count)):
        print(json.dumps({"begin": f"forged {number}"}), flush=True)
        for one in run_case(number, Path(folder), Path(folder, "case")):
            print(json.dumps({"wrong": one}), flush=True)
        if (used := most_memory()) > 1024:
            print(json.dumps({"wrong": f"case {number}: {used} MiB of memory"}), flush=True)
            return
    print(json.dumps({"end": True}))


if __name__ == "__main__":
    main(*sys.argv[1:])
