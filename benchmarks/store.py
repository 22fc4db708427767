"""What the store costs: questions in SQL beside plain DuckDB, arrays and new fields beside plain files, updates, keys.

    .venv/bin/python benchmarks/store.py --folder /some/disk/scratch

Every line is the median of --repetitions; the two sides of a ratio take turns. Plain DuckDB asks the same Arrow table,
made from the same samples, with the same number of threads; "synced" is what `fsync` makes of writing a file, which the
store does for every commit.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import duckdb
import numpy as np

import shardex as sx

QUESTIONS = [
    "lang = 'de' AND ntok > 3000 AND score > 0.9",
    "score > 0.5",
    "note IS NOT NULL",
    "id BETWEEN 1000 AND 2000",
]


def timed(*jobs: Callable[[], object], repetitions: int, before: Callable[[], object] = lambda: None) -> list[float]:
    """The median milliseconds of each job; they take turns. `before` is called before each, and not measured."""
    took: list[list[float]] = [[] for _ in jobs]
    for _ in range(repetitions):
        for job, times in zip(jobs, took, strict=True):
            before()
            start = time.perf_counter()
            job()
            times.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(times) for times in took]


def write(folder: Path, rows: int) -> sx.Dataset:
    """Samples with a key, numbers, text and a field that few have."""
    chance = np.random.default_rng(0)
    lang = chance.choice(["de", "en", "fr", "ja"], rows).tolist()
    ntok, score = chance.integers(0, 4096, rows).tolist(), chance.random(rows).tolist()
    note = [f"note {k}" if k % 10 == 0 else None for k in range(rows)]
    samples = ({"id": k, "lang": lang[k], "ntok": ntok[k], "score": score[k], "note": note[k]} for k in range(rows))
    schema = {"id": int, "lang": str, "ntok": "int32", "score": float, "note": str | None}
    return sx.write(folder / "d", samples, schema, key="id", progress=False)


def questions(ds: sx.Dataset, repetitions: int) -> None:
    """`where` next to DuckDB over the same columns."""
    table = ds.to_arrow().append_column("_row", [np.arange(len(ds))])
    plain = duckdb.connect().register("t", table)
    print("| question | `where`, ms | plain DuckDB, ms | ratio | found |\n|---|---|---|---|---|")
    for text in QUESTIONS:
        count = len(ds.where(text))
        ours, theirs = timed(
            lambda text=text: ds.where(text),
            lambda text=text: plain.sql(f"SELECT _row FROM t WHERE {text}").to_arrow_table(),
            repetitions=repetitions,
        )
        print(f"| `{text}` | {ours:.1f} | {theirs:.1f} | {ours / theirs:.2f} | {count} |")
    print()


def write_files(folder: Path, columns: dict[str, np.ndarray]) -> None:
    """Arrays as plain files, synced."""
    for field, column in columns.items():
        with (folder / f"{field}.bin").open("wb") as file:
            file.write(column.data)
            file.flush()
            os.fsync(file.fileno())


def write_arrays(folder: Path, columns: dict[str, np.ndarray], step: int) -> None:
    """Arrays as a dataset, in parts of `step` samples."""
    schema = {field: sx.Array(column.dtype, column.shape[1:]) for field, column in columns.items()}
    with sx.create(folder / "arrays", schema) as out:
        for first in range(0, len(next(iter(columns.values()))), step):
            out.extend({field: column[first : first + step] for field, column in columns.items()})


def remove_files(folder: Path) -> None:
    """Remove what was written, and wait until the disk has nothing to do."""
    shutil.rmtree(folder)
    folder.mkdir()
    os.sync()


def arrays(folder: Path, repetitions: int) -> None:
    """Whole arrays given to a writer, at once and in parts, next to plain files of the same bytes."""
    folder.mkdir()
    chance = np.random.default_rng(4)
    series = {"history": chance.random((200_000, 100), np.float32), "target": chance.random((200_000, 50), np.float32)}
    tokens = {"tokens": chance.integers(0, 50_000, (50_000, 1024), np.uint16)}
    print("| arrays | MB | plain files, synced, ms | `extend`, ms | ratio | parts of 4096, ms | ratio |")
    print("|---|---|---|---|---|---|---|")
    for name, columns in (("tokens", tokens), ("series", series)):
        files, whole, parts = timed(
            partial(write_files, folder, columns),
            partial(write_arrays, folder, columns, 1 << 30),
            partial(write_arrays, folder, columns, 4096),
            repetitions=repetitions,
            before=partial(remove_files, folder),
        )
        size = sum(column.nbytes for column in columns.values()) / 1e6
        ratios = f"| {whole:.0f} | {files / whole:.2f} | {parts:.0f} | {files / parts:.2f} |"
        print(f"| {name} | {size:.0f} | {files:.0f} {ratios}")
    print()


def fields(folder: Path, rows: int, repetitions: int) -> None:
    """A new field next to a plain file, and updates of 1 %."""
    values, path = np.random.default_rng(1).random(rows).astype(np.float32), folder / "plain.bin"
    number = iter(range(1000))

    def add() -> None:
        with sx.edit(folder / "d", progress=False) as tx:
            tx.add_field(f"w{next(number)}", "float32", values)

    def plain(sync: bool) -> None:
        with path.open("wb") as file:
            file.write(values.data)
            file.flush()
            if sync:
                os.fsync(file.fileno())

    some = np.random.default_rng(2).choice(rows, rows // 100, replace=False).tolist()

    def update() -> None:
        with sx.edit(folder / "d", progress=False) as tx:
            for row in some:
                tx.update(row, score=0.0)

    added, unsynced, synced, updated = timed(
        add, lambda: plain(False), lambda: plain(True), update, repetitions=repetitions
    )
    print(f"add a float32 to {rows} samples: {added:.1f} ms; a plain file {unsynced:.1f} ms, synced {synced:.1f} ms")
    print(f"update {len(some)} samples: {updated:.0f} ms")


def keys(ds: sx.Dataset, repetitions: int) -> None:
    """Look-ups by key."""
    wanted = np.random.default_rng(3).permutation(len(ds))
    (many,) = timed(lambda: ds.rows_of(wanted), repetitions=repetitions)
    (one,) = timed(lambda: [ds.get(int(key)) for key in wanted[:1000]], repetitions=repetitions)
    print(f"{len(ds)} keys to rows: {many:.0f} ms; `get`: {one:.1f} us")


def main() -> None:
    """All of it, in a scratch folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repetitions", type=int, default=9)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        arrays(Path(folder, "arrays"), given.repetitions)
        ds = write(Path(folder), given.rows)
        questions(ds, given.repetitions)
        keys(ds, min(3, given.repetitions))
        fields(Path(folder), given.rows, given.repetitions)


if __name__ == "__main__":
    main()
