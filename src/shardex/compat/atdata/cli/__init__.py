"""The command line of atdata: ``inspect``, ``preview``, ``verify``, ``schema``, ``diagnose``, ``infra``, ``version``.

The commands are those of `shardex` where it has them. References ``@local/name`` are datasets of the default index.
``diagnose`` looks at the Redis of an index (`diagnose`), ``infra`` (formerly ``local``) runs one in Docker (`infra`).
"""

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version

from shardex.compat.atdata._checksums import verify_checksums
from shardex.compat.atdata._named import get_default_index
from shardex.compat.atdata.cli.diagnose import diagnose_redis
from shardex.compat.atdata.cli.infra import add_infra, run_infra
from shardex.compat.atdata.cli.infra import local_down as down
from shardex.compat.atdata.cli.infra import local_status as status
from shardex.compat.atdata.cli.infra import local_up as up
from shardex.compat.atdata.cli.inspect import inspect_dataset
from shardex.compat.atdata.cli.preview import preview_dataset
from shardex.compat.atdata.cli.schema import schema_diff, schema_show
from shardex.errors import ShardexError

__all__ = [
    "diagnose_redis",
    "down",
    "inspect_dataset",
    "main",
    "preview_dataset",
    "schema_diff",
    "schema_show",
    "status",
    "up",
    "verify",
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
            return verify(given.ref)
        if given.command == "diagnose":
            return diagnose_redis(given.host, given.port)
        return run_infra(given)
    except ShardexError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1


def verify(ref: str) -> int:
    """Print for each shard of a dataset of the default index whether it has its checksum; the exit code is 0 if so."""
    found = verify_checksums(get_default_index().get_dataset(ref))
    for url, result in found.items():
        print(f"  [{result}] {url}")
    failed = [one for one in found.values() if one not in ("ok", "skipped")]
    print("Verification FAILED." if failed else "All checksums verified.")
    return int(bool(failed))
