"""What a catalog of many records costs: get, search, list, put.

    .venv/bin/python benchmarks/catalog.py --folder /some/disk/scratch
    .venv/bin/python benchmarks/catalog.py --folder /some/disk/scratch --records 5000 --backend folder

Each record has 20 fields, a description of 20 words out of 10 000, and two tags. Figures are medians of --repetitions
calls; "first" is how long a listing takes until its first record.
"""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Callable

import shardex as sx
from shardex.catalog import Content
from shardex.catalog.sqlite_file import SqliteFile

FIELDS = {f"field_{k}": {"kind": "value", "dtype": "float32"} for k in range(19)}
RANDOM = random.Random(0)
WORDS = ["".join(RANDOM.choices("abcdefghijklmnopqrstuvwxyz", k=7)) for _ in range(10_000)]


def content(number: int) -> Content:
    schema = {**FIELDS, f"own_{number % 1000}": {"kind": "text"}}
    url = f"s3://bucket/data/{number:06d}"
    return Content(fingerprint=f"{number:016x}", urls=[url], format="arrow", samples=number, schema=schema)


def about(number: int) -> dict[str, object]:
    return {"description": " ".join(RANDOM.choices(WORDS, k=20)), "tags": [f"tag{number % 500}", "all"]}


def fill(catalog: sx.Catalog, count: int) -> None:
    """Put the records; into SQLite without waiting for the disk."""
    if isinstance(catalog._backend, SqliteFile):
        connection = catalog._backend._connection(create=True)
        assert connection is not None
        connection.execute("PRAGMA synchronous = OFF")
    for number in range(count):
        catalog.put(f"team{number % 100}/dataset-{number}", content(number), **about(number))  # type: ignore[arg-type]
    catalog.close()


def milliseconds(job: Callable[[int], object], repetitions: int) -> str:
    """The median of several calls, and the slowest of twenty."""
    taken = []
    for number in range(repetitions):
        begin = time.perf_counter()
        job(number)
        taken.append(1000 * (time.perf_counter() - begin))
    return f"{statistics.median(taken):8.3f} ms   (1 in 20 above {statistics.quantiles(taken, n=20)[-1]:.3f} ms)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder")
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--backend", choices=["sqlite", "folder"], default="sqlite")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        catalog = sx.Catalog(f"{folder}/catalog{'.db' * (args.backend == 'sqlite')}")
        begin, count = time.perf_counter(), args.records
        fill(catalog, count)
        print(f"{count} records in {time.perf_counter() - begin:.1f} s")

        def name(number: int) -> str:
            chosen = number * 7919 % count
            return f"team{chosen % 100}/dataset-{chosen}"

        def measure(title: str, job: Callable[[int], object], repetitions: int = args.repetitions) -> None:
            print(f"{title:<32}{milliseconds(job, repetitions)}")

        measure("get", lambda k: catalog.get(name(k)))
        measure("get of a new Catalog", lambda k: sx.Catalog(catalog.url).get(name(k)))
        searched: dict[str, Callable[[int], object]] = {
            "two words": lambda k: [*catalog.search(f"{WORDS[k]} {WORDS[k + 1]}")],
            "one word": lambda k: [*catalog.search(WORDS[k])],
            "begin of a word": lambda k: [*catalog.search(WORDS[k][:5])],
            "a tag": lambda k: [*catalog.search(tags=[f"tag{k % 500}"])],
            "a field": lambda k: [*catalog.search(fields=[f"own_{k}"])],
            "first of all": lambda k: next(catalog.search("all")),
        }
        quick = args.backend == "sqlite"
        for title, job in searched.items():
            measure(f"search, {title}", job, args.repetitions if quick else 3)
        measure("list, first", lambda k: next(catalog.list()), 20 if quick else 3)
        before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
        listed = sum(1 for _ in catalog.list())
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        print(f"list, all {listed}: {time.perf_counter() - begin:.2f} s, {grown / 1024:.1f} MB more memory")
        measure("put, on the disk", lambda k: catalog.put(name(k), content(count + k)), min(args.repetitions, 50))


if __name__ == "__main__":
    main()
