"""The command line of atdata: ``inspect``, ``preview``, ``verify``, ``schema``, ``diagnose``, ``infra``, ``version``.

The commands are those of `shardex` where it has them. References ``@local/name`` are datasets of the default index.
``diagnose`` looks at the Redis of an index (`diagnose`), ``infra`` (formerly ``local``) runs one in Docker (`_infra`).
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from shardex.compat.atdata._checksums import verify_checksums
from shardex.compat.atdata._dataset import Dataset
from shardex.compat.atdata._named import dataset_of_name, get_default_index
from shardex.compat.atdata._samples import DictSample
from shardex.compat.atdata.cli._infra import add_infra, run_infra
from shardex.compat.atdata.cli.diagnose import diagnose_redis
from shardex.errors import ShardexError

__all__ = [
    "diagnose_redis",
    "inspect_dataset",
    "main",
    "preview_dataset",
    "schema_diff",
    "schema_show",
    "verify_dataset",
]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit code."""
    parser = argparse.ArgumentParser("atdata", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("inspect", help="show format, size and fields (shardex info)").add_argument("url")
    preview = commands.add_parser("preview", help="show the first samples (shardex head)")
    preview.add_argument("url")
    preview.add_argument("--limit", "-n", type=int, default=5)
    schema = commands.add_parser("schema").add_subparsers(dest="action", required=True)
    schema.add_parser("show", help="show the fields").add_argument("dataset_ref")
    diff = schema.add_parser("diff", help="compare the fields of two datasets")
    diff.add_argument("url_a")
    diff.add_argument("url_b")
    commands.add_parser("verify", help="compare shards with the checksums of an entry").add_argument("ref")
    redis = commands.add_parser("diagnose", help="look for settings of a Redis that lose data")
    redis.add_argument("--host", default="localhost")
    redis.add_argument("--port", type=int, default=6379)
    for name in ("infra", "local"):
        add_infra(commands.add_parser(name, help="run Redis and an S3 server in Docker"))
    commands.add_parser("version", help="print the version of shardex")
    return _run(parser.parse_args(argv))


def _run(given: argparse.Namespace) -> int:
    try:
        if given.command == "inspect":
            return inspect_dataset(given.url)
        if given.command == "preview":
            return preview_dataset(given.url, given.limit)
        if given.command == "schema":
            show = given.action == "show"
            return schema_show(given.dataset_ref) if show else schema_diff(given.url_a, given.url_b)
        if given.command == "version":
            print(f"shardex {version('shardex')}")
            return 0
        if given.command == "verify":
            return verify_dataset(given.ref)
        if given.command == "diagnose":
            return diagnose_redis(given.host, given.port)
        return run_infra(given)
    except ShardexError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1


def verify_dataset(ref: str) -> int:
    """Print for each shard of a dataset of the default index whether it has its checksum; the exit code is 0 if so."""
    found = verify_checksums(get_default_index().get_dataset(ref))
    for url, result in found.items():
        print(f"  [{result}] {url}")
    failed = [one for one in found.values() if one not in ("ok", "skipped")]
    print("Verification FAILED." if failed else "All checksums verified.")
    return int(bool(failed))


def inspect_dataset(url: str) -> int:
    """Print the format, the size and the fields of a dataset, as ``shardex info`` does."""
    return _shardex("info", url)


def preview_dataset(url: str, limit: int = 5) -> int:
    """Print the first samples of a dataset, as ``shardex head`` does."""
    return _shardex("head", url, "-n", str(limit))


def _shardex(*arguments: str) -> int:
    app: Any = importlib.import_module("shardex.cli").app  # imports typer, which only commands need
    code = app(list(arguments), prog_name="shardex", standalone_mode=False)
    return code if isinstance(code, int) else 0


def schema_show(dataset_ref: str) -> int:
    """Print the fields of the first sample of a dataset."""
    fields = _fields(dataset_ref)
    print(f"Schema for: {dataset_ref}", f"Fields ({len(fields)}):", sep="\n")
    for name, kind in fields.items():
        print(f"  {name}: {kind}")
    return 0


def schema_diff(url_a: str, url_b: str) -> int:
    """Print which fields differ between two datasets; the exit code is 0 if none do, 1 otherwise, 2 for an error."""
    try:
        a, b = _fields(url_a), _fields(url_b)
    except ShardexError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    added = [f"  + {name}: {b[name]}" for name in sorted(b.keys() - a.keys())]
    removed = [f"  - {name}: {a[name]}" for name in sorted(a.keys() - b.keys())]
    changed = [f"  ~ {name}: {a[name]} -> {b[name]}" for name in sorted(a.keys() & b.keys()) if a[name] != b[name]]
    for title, lines in (("Added:", added), ("Removed:", removed), ("Changed:", changed)):
        if lines:
            print(title, *lines, sep="\n")
    if not (added or removed or changed):
        print("Schemas are identical.")
    return int(bool(added or removed or changed))


def _fields(url: str) -> dict[str, str]:
    """Return the names and types of the values of the first sample."""
    named = url.startswith(("@", "at://"))
    first = (dataset_of_name(url, DictSample, None, None) if named else Dataset[DictSample](url)).head(1)
    return {name: type(value).__name__ for name, value in first[0].items()} if first else {}
