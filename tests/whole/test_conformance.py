"""Every format and every view of datasets behaves as a Python list of the same samples."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import shardex as sx
from shardex.dataset.memory_rows import ColumnRows
from shardex.testing import Case, ListRows, RowsSuite
from tests.compressed_files import PACKERS, in_parts, zstd

Samples = list[dict[str, Any]]


def series(count: int = 11) -> Samples:
    """Arrays of one shape, text, numbers."""
    random = np.random.default_rng(1)
    return [
        {"x": random.random(5, dtype=np.float32), "n": k, "ok": k % 3 == 0, "name": f"né{k}", "raw": bytes([k, 0])}
        for k in range(count)
    ]


def mixed(count: int = 11) -> Samples:
    """Arrays of any length, missing values, nested values."""
    return [
        {
            "tokens": np.arange(k % 4, dtype=np.int32),
            "pairs": np.full((k % 3, 2), k, np.int16),
            "maybe": None if k % 2 else np.array([k, k], np.float64),
            "note": None if k % 3 else f"note {k}",
            "meta": {"k": [k, None, "é"]},
            "tags": ["t"] * (k % 3),
        }
        for k in range(count)
    ]


SERIES = {"x": sx.Array("float32", (5,)), "n": "int64", "ok": bool, "name": str, "raw": bytes}
MIXED = {
    "tokens": sx.Array("int32", (None,)),
    "pairs": sx.Array("int16", (None, 2)),
    "maybe": sx.Optional(sx.Array("float64", (2,))),
    "note": str | None,
    "meta": sx.Json(),
    "tags": list[str],
}


def json_samples(samples: Samples) -> Samples:
    """The fields of `series` that JSON can hold."""
    return [{"n": s["n"], "ok": s["ok"], "name": s["name"], "x": s["x"].tolist()} for s in samples]


def tar_samples(samples: Samples) -> Samples:
    """`series` as a tar returns it: with a key, and without truth values."""
    return [
        {"__key__": f"{k:09d}", "x": s["x"], "n": s["n"], "name": s["name"], "raw": s["raw"]}
        for k, s in enumerate(samples)
    ]


def arrow(folder: Path) -> Case:
    return Case(sx.write(folder, series(), SERIES).rows, series())


def arrow_in_shards(folder: Path) -> Case:
    return Case(sx.write(folder, series(), SERIES, shard_rows=3).rows, series())


def arrow_mixed(folder: Path) -> Case:
    return Case(sx.write(folder, mixed(), MIXED, shard_rows=4).rows, mixed())


def parquet(folder: Path) -> Case:
    return Case(sx.write(folder, series(), SERIES, format="parquet", shard_rows=6, row_group_rows=4).rows, series())


def parquet_mixed(folder: Path) -> Case:
    return Case(sx.write(folder, mixed(), MIXED, format="parquet", row_group_rows=4).rows, mixed())


def jsonl(folder: Path) -> Case:
    return Case(sx.write(folder, json_samples(series()), format="jsonl", shard_rows=4).rows, json_samples(series()))


def compressed(folder: Path) -> Case:
    """Files of all kinds of compression, with access points and copied."""
    sx.write(folder, json_samples(series()), format="jsonl", shard_rows=2, progress=False)
    shutil.rmtree(folder / ".shardex", ignore_errors=True)
    packers = [*PACKERS.items(), ("zst", lambda data: in_parts(zstd, data, 20))]
    for (extension, pack), path in zip(packers, sorted(folder.iterdir()), strict=False):
        path.with_name(f"{path.name}.{extension}").write_bytes(pack(path.read_bytes()))
        path.unlink()
    return Case(sx.open(folder, cache=folder.parent / "cache").rows, json_samples(series()))


def json_array(folder: Path) -> Case:
    folder.mkdir()
    (folder / "a.json").write_text(json.dumps(json_samples(series())[:4], indent=2))
    (folder / "b.json").write_text(json.dumps(json_samples(series())[4:]))
    return Case(sx.open(folder).rows, json_samples(series()))


def text(folder: Path) -> Case:
    samples: Samples = [{"text": "né" * (k % 4)} for k in range(11)]
    return Case(sx.write(folder, samples, format="text", shard_rows=4).rows, samples)


def text_documents(folder: Path) -> Case:
    samples: Samples = [{"text": f"né\n{k}\n" * (k % 4)} for k in range(11)]
    folder.mkdir()
    for number, sample in enumerate(samples):
        (folder / f"{number}.txt").write_text(sample["text"], "utf-8")
    return Case(sx.open(folder, lines=False).rows, samples)


def csv(folder: Path) -> Case:
    samples = [{"n": s["n"], "ok": s["ok"], "name": s["name"], "x": float(s["x"][0])} for s in series()]
    return Case(sx.write(folder, samples, format="csv", shard_rows=4).rows, samples)


def csv_mixed(folder: Path) -> Case:
    samples: Samples = [
        {"n": k, "maybe": None if k % 2 else k / 2, "note": None if k % 3 else f'"né",\n{k}' * (k % 2)}
        for k in range(11)
    ]
    return Case(sx.write(folder, samples, format="csv").rows, samples)


def csv_singles(folder: Path) -> Case:
    schema = {"f": SINGLES["f"], "c": SINGLES["c"]}
    samples: Samples = [{"f": one["f"], "c": one["c"]} for one in singles()]
    sx.write(folder, samples, schema, format="csv")
    return Case(sx.open(folder, schema=schema).rows, samples)


def tar(folder: Path) -> Case:
    schema = {"x": SERIES["x"], "n": "int64", "name": str, "raw": bytes}
    samples = [{name: s[name] for name in schema} for s in series()]
    return Case(sx.write(folder, samples, schema, format="tar", shard_rows=4).rows, tar_samples(series()))


def tar_of_maps(folder: Path) -> Case:
    sx.write(folder, mixed(), MIXED, format="tar", layout="msgpack", shard_rows=4)
    return Case(
        sx.open(folder, schema=MIXED).rows, [{"__key__": f"{k:09d}", **sample} for k, sample in enumerate(mixed())]
    )


def arrow_table(folder: Path) -> Case:
    table = pa.concat_tables([sx.open(series()).to_arrow(), sx.open(series(14)).to_arrow().slice(11)])
    return Case(sx.open(table).rows, series(14))


def arrow_table_mixed(folder: Path) -> Case:
    return Case(sx.open(sx.write(folder, mixed(), MIXED, shard_rows=4).to_arrow()).rows, mixed())


def tokens_fixed(folder: Path) -> Case:
    samples: Samples = [{"tokens": np.arange(k, k + 6, dtype=np.uint16)} for k in range(11)]
    return Case(sx.write(folder, samples, {"tokens": sx.Array("uint16", (6,))}, format="tokens").rows, samples)


def tokens_free(folder: Path) -> Case:
    samples: Samples = [{"tokens": np.arange(k % 5, dtype=np.uint16)} for k in range(11)]
    return Case(sx.write(folder, samples, {"tokens": sx.Array("uint16", (None,))}, format="tokens").rows, samples)


def megatron(folder: Path) -> Case:
    samples: Samples = [{"tokens": np.arange(k % 5, dtype=np.uint16)} for k in range(11)]
    schema = {"tokens": sx.Array("uint16", (None,))}
    return Case(sx.write(folder, samples, schema, format="megatron", shard_size=10).rows, samples)


def nanogpt(folder: Path) -> Case:
    samples: Samples = [{"tokens": np.arange(k, k + 3, dtype=np.uint32)} for k in range(11)]
    options: Any = {"format": "nanogpt", "header": True, "shard_size": 60}
    sx.write(folder, samples, {"tokens": sx.Array("uint32", (3,))}, **options)
    return Case(sx.open(folder, window=3).rows, samples)


def npy(folder: Path) -> Case:
    samples: Samples = [{"tokens": np.arange(k, k + 3, dtype=np.float32)} for k in range(11)]
    schema = {"tokens": sx.Array("float32", (3,))}
    return Case(sx.write(folder, samples, schema, format="npy", shard_size=48).rows, samples)


def npz(folder: Path) -> Case:
    samples: Samples = [{"x": np.arange(k, k + 3, dtype=np.float32), "n": k, "s": f"né {k}"} for k in range(11)]
    schema = {"x": sx.Array("float32", (3,)), "n": int, "s": str}
    return Case(sx.write(folder, samples, schema, format="npz", shard_rows=4).rows, samples)


def data_forager(folder: Path) -> Case:
    samples: Samples = [
        {"tokens": np.arange(k, k + 3, dtype=np.uint16), "mask": np.full(3, k % 2, np.uint8)} for k in range(11)
    ]
    schema = {"tokens": sx.Array("uint16", (3,)), "mask": sx.Array("uint8", (3,))}
    return Case(sx.write(folder, samples, schema, format="data_forager", shard_size=30).rows, samples)


def bins(folder: Path) -> Case:
    samples: Samples = [{"data": bytes([k]) * (k % 4)} for k in range(11)]
    return Case(sx.write(folder, samples, {"data": bytes}, format="bins", splits=3).rows, samples)


def columns_tar(folder: Path) -> Case:
    samples: Samples = [
        {"id": f"id/{k}", "x": np.arange(k, dtype=np.float32), "metadata": {"k": k, "note": "é"}} for k in range(11)
    ]
    schema = {"id": str, "x": sx.Array(), "metadata": sx.Json()}
    return Case(sx.write(folder, samples, schema, format="columns_tar", samples_per_shard=4).rows, samples)


def media_folder(folder: Path) -> Case:
    """Files of media as bytes, with classes, captions and metadata."""
    samples: Samples = []
    for k in range(11):
        path = f"{'ab'[k // 6]}/né{k}.PNG"
        samples.append({"image": bytes([k]) * (1 + k % 3 * 4000), "label": k // 6, "path": path})
        samples[-1] |= {"text": None if k % 3 else f"né {k}", "n": k, "maybe": None if k % 2 else k / 2}
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(samples[-1]["image"])
        if samples[-1]["text"] is not None:
            (folder / path).with_suffix(".txt").write_text(samples[-1]["text"], "utf-8")
    lines = [{"file_name": one["path"], "n": one["n"], "maybe": one["maybe"]} for one in samples]
    (folder / "metadata.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in reversed(lines)))
    return Case(sx.open(folder, schema={"image": bytes}).rows, samples)


def singles(count: int = 11) -> Samples:
    """Scalars, where the types in a column and in a sample could differ."""
    return [{"v": np.array(k + 0.5), "f": float(np.float32(k + 0.1)), "c": k % 2} for k in range(count)]


SINGLES = {"v": sx.Array("float64", ()), "f": "float32", "c": sx.ClassLabel(("even", "odd"))}


def arrow_singles(folder: Path) -> Case:
    return Case(sx.write(folder, singles(), SINGLES).rows, singles())


def jsonl_singles(folder: Path) -> Case:
    sx.write(folder, singles(), SINGLES, format="jsonl")
    return Case(sx.open(folder, schema=SINGLES).rows, singles())


def bins_singles(folder: Path) -> Case:
    return Case(sx.write(folder, singles(), SINGLES, format="bins", splits=3).rows, singles())


def list_rows(folder: Path) -> Case:
    return Case(ListRows(series()), series())


def column_rows(folder: Path) -> Case:
    columns = {name: [sample[name] for sample in series()] for name in series()[0]}
    return Case(ColumnRows({**columns, "x": np.stack(columns["x"]), "n": np.array(columns["n"])}), series())


def column_rows_mixed(folder: Path) -> Case:
    samples = mixed()
    return Case(ColumnRows({name: [sample[name] for sample in samples] for name in samples[0]}), samples)


def renamed(folder: Path) -> Case:
    samples = [{"n": one["ok"], "ok": one["n"], "vector": one["x"]} for one in series()]
    ds = sx.write(folder, series(), SERIES).select("ok", "n", "x")
    return Case(ds.rename(x="vector", n="ok", ok="n"), samples)


def stacked(folder: Path) -> Case:
    samples = [{"s": one["name"], "x": one["x"], "both": np.array([one["n"], one["ok"]], np.int64)} for one in series()]
    ds = sx.write(folder, series(), SERIES).rename(name="s").select("n", "s", "x", "ok")
    return Case(ds.stack(both=["n", "ok"]), samples)


def sorted_by_name(folder: Path) -> Case:
    ds = sx.write(folder, series(), SERIES, shard_rows=4).sort("name", descending=True)
    return Case(ds, sorted(series(), key=lambda one: str(one["name"]), reverse=True))


def sliced(folder: Path) -> Case:
    return Case(sx.write(folder, series(14), SERIES, shard_rows=5)[2:13], series(14)[2:13])


def shuffled(folder: Path) -> Case:
    ds = sx.write(folder, series(), SERIES).shuffle(seed=3)
    order = [s.n for s in ds.select("n")]
    return Case(ds, [series()[k] for k in order])


def concatenated(folder: Path) -> Case:
    first = sx.write(folder / "a", series(11)[:4], SERIES)
    second = sx.write(folder / "b", series(11)[4:], SERIES, format="parquet")
    return Case(sx.concat(first, second[:0], second), series(11))


def joined(folder: Path) -> Case:
    extra: Samples = [{"score": float(k), "words": ["w"] * k} for k in range(11)]
    other = sx.write(folder / "b", extra, {"score": float, "words": list[str]}, format="jsonl", shard_rows=4)
    both = [{**a, **b} for a, b in zip(series(), extra, strict=True)]
    return Case(sx.join(sx.write(folder / "a", series(), SERIES), other), both)


def documents(folder: Path) -> sx.Dataset[Any]:
    """Tokens 0 to 49, in documents of 0 to 9."""
    ends = np.cumsum([*range(10), 5])
    samples = [{"tokens": np.arange(a, b, dtype=np.uint16)} for a, b in pairwise(ends.tolist())]
    return sx.write(folder, samples, {"tokens": sx.Array("uint16", (None,))}, format="tokens", shard_size=40)


TOKEN_VIEWS: dict[str, Callable[[sx.Dataset[Any]], sx.Dataset[Any]]] = {
    "windows": lambda ds: ds.windows(4, labels=True),
    "windows_in_documents": lambda ds: ds.windows(4, across=False, partial=True),
    "packed": lambda ds: ds.pack(7, segments=True).select("tokens", "segment_ids"),
}


def windows(folder: Path) -> Case:
    begins = range(0, 45, 4)
    samples: Samples = [{"inputs": np.arange(b, b + 4), "labels": np.arange(b + 1, b + 5)} for b in begins]
    return Case(TOKEN_VIEWS["windows"](documents(folder)), samples)


def windows_in_documents(folder: Path) -> Case:
    starts = np.cumsum(range(11))
    samples = [
        {"tokens": np.arange(b, min(b + 4, ends), dtype=np.uint16)}
        for begin, ends in pairwise([*starts[:10].tolist(), 50])
        for b in range(begin, ends, 4)
    ]
    return Case(TOKEN_VIEWS["windows_in_documents"](documents(folder)), samples)


def sliding(folder: Path) -> Case:
    """Rows of two groups, in turn, with descending times."""
    rows = [{"g": "ab"[k % 2], "t": -k, "x": np.float32(k)} for k in range(21)]
    ds = sx.write(folder, rows, {"g": str, "t": int, "x": "float32"}, format="parquet")
    samples: Samples = []
    for group, last in (("a", 20), ("b", 19)):
        for begin in range(last, 5, -2):
            numbers = np.arange(begin, begin - 8, -2)
            fields: dict[str, Any] = {"t": -numbers, "x": numbers.astype(np.float32)}
            history = {name: array[:3] for name, array in fields.items()}
            samples.append({"g": group, **history, **{f"{name}_future": array[3:] for name, array in fields.items()}})
    return Case(ds.sliding(3, 1, group="g", time="t"), samples)


def packed(folder: Path) -> Case:
    samples: Samples = []
    for begin in range(0, 50, 7):
        tokens = list(range(begin, min(begin + 7, 50)))
        firsts = [0, 1, 3, 6, 10, 15, 21, 28, 36, 45]
        number = [sum(first <= token for first in firsts) for token in tokens]
        samples.append(
            {
                "tokens": np.array(tokens + [0] * (7 - len(tokens)), np.uint16),
                "segment_ids": np.array([n - number[0] + 1 for n in number] + [0] * (7 - len(tokens)), np.int32),
            }
        )
    return Case(TOKEN_VIEWS["packed"](documents(folder)), samples)


MAKERS: list[Callable[[Path], Case]] = [
    arrow,
    arrow_in_shards,
    arrow_mixed,
    parquet,
    parquet_mixed,
    jsonl,
    compressed,
    json_array,
    text,
    text_documents,
    csv,
    csv_mixed,
    csv_singles,
    tar,
    tar_of_maps,
    arrow_table,
    arrow_table_mixed,
    tokens_fixed,
    tokens_free,
    megatron,
    nanogpt,
    npy,
    npz,
    data_forager,
    bins,
    columns_tar,
    media_folder,
    arrow_singles,
    jsonl_singles,
    bins_singles,
    list_rows,
    column_rows,
    column_rows_mixed,
    renamed,
    stacked,
    sorted_by_name,
    sliced,
    shuffled,
    concatenated,
    joined,
    windows,
    windows_in_documents,
    sliding,
    packed,
]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
class TestRows(RowsSuite):
    """The public suite over every format and view."""

    @pytest.fixture
    def case(self, make: Callable[[Path], Case], tmp_path: Path) -> Case:
        return make(tmp_path / "data")

    test_other_processes = None  # type: ignore[assignment]


IN_PROCESSES = (arrow, arrow_table, parquet_mixed, jsonl, tar, tokens_free, columns_tar, media_folder, joined, sliding)
"""What `make test` reads in forked processes: columns in files and in memory, records, a database, files, views."""


@pytest.mark.parametrize(
    "make",
    [pytest.param(one, id=one.__name__, marks=[pytest.mark.long] * (one not in IN_PROCESSES)) for one in MAKERS],
)
def test_forked_processes(make: Callable[[Path], Case], tmp_path: Path) -> None:
    RowsSuite().test_other_processes(make(tmp_path / "data"), "fork")


@pytest.mark.parametrize("make", [arrow_in_shards, tar, joined], ids=lambda make: make.__name__)
def test_spawned_processes(make: Callable[[Path], Case], tmp_path: Path) -> None:
    """For a few rows only: a spawned process starts slowly, and the suite tests pickling with all rows."""
    RowsSuite().test_other_processes(make(tmp_path / "data"), "spawn")
