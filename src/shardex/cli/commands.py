"""The command line: `info`, `head`, `sql`, `index` and `demo`, each a few lines over the library, and `upkeep.py`.

Progress and errors go to stderr, results to stdout (`terminal.py`). What shardex refuses is one line and exit code 1,
never a traceback.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import warnings
from dataclasses import asdict
from importlib.metadata import version
from typing import Annotated, Any

import numpy as np
import typer
from typer.core import TyperGroup

from shardex.cli import demo as tour
from shardex.cli import store_commands as upkeep
from shardex.cli.terminal import (
    AsJson,
    Format,
    Options,
    What,
    message,
    plain,
    print_json,
    print_rows,
    printable,
    resolve,
    size_text,
)
from shardex.dataset import Dataset
from shardex.errors import ShardexError
from shardex.files import Index, display_name
from shardex.formats import ShardRows, open_rows
from shardex.schema import ClassLabel, Feature, Optional
from shardex.sources import is_url

__all__ = ["app", "main"]

_WIDTH = 76
_FIRST_VALUES = 6
_JUST_NOW = 0.02
"""Clocks of file systems lag behind the system's by a tick of the kernel."""


class _Commands(TyperGroup):
    """Ends every command in the same way, whatever went wrong in it."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except ShardexError as error:
            print(f"shardex: {printable(message(error))}", file=sys.stderr)
            raise typer.Exit(1) from None
        except BrokenPipeError:
            # Whoever read our output has seen enough; the flush at exit must not complain either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


app = typer.Typer(cls=_Commands, rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


def main() -> None:
    """Run the command line."""
    warnings.formatwarning = lambda message, *_, **__: f"shardex: warning: {message}\n"
    app(prog_name="shardex")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"shardex {version('shardex')}")
        raise typer.Exit()


@app.callback(no_args_is_help=True)
def _top(
    _: Annotated[bool, typer.Option("--version", callback=_print_version, help="Print the version.")] = False,
) -> None:
    """One dataset API over sharded files. `shardex COMMAND --help` shows an example of each command."""


# -- info -----------------------------------------------------------------------------------------------------


@app.command()
def info(what: What, format: Format = None, option: Options = None, as_json: AsJson = False) -> None:
    """Show what a dataset is: its format, size and fields.

    Example: shardex info data/weather
    """
    rows = _open(what, format, option)
    facts: dict[str, Any] = {
        "path": _place(rows) if isinstance(rows.opened.what, str) else [*map(display_name, rows.opened.what)],
        "format": rows.opened.format,
        "version": rows.pinned.get("version"),
        "samples": len(rows),
        "shards": len(rows.shard_names()),
        "bytes": _bytes_on_disk(rows),
        "fingerprint": rows.fingerprint,
    }
    if as_json:
        print_json({**facts, "fields": rows.features.to_json()})
        return
    facts |= {"path": _place(rows), "samples": f"{len(rows):,}"}
    facts["bytes"] = None if facts["bytes"] is None else size_text(facts["bytes"])
    print_rows((name, value) for name, value in facts.items() if value is not None)
    print()
    print_rows([("field", "feature"), *((name, str(feature)) for name, feature in rows.features.items())])


def _bytes_on_disk(rows: ShardRows) -> int | None:
    """None for files that lie elsewhere: to ask for all their sizes may take long."""
    names = dict.fromkeys(rows.shard_names())
    return None if any(map(is_url, names)) else sum(map(os.path.getsize, names))


def _place(rows: ShardRows) -> str:
    what = rows.opened.what
    return display_name(what) if isinstance(what, str) else f"{display_name(what[0])} and {len(what) - 1} more"


# -- head -----------------------------------------------------------------------------------------------------


@app.command()
def head(
    what: What,
    count: Annotated[int, typer.Option("-n", "--count", min=0, help="How many samples.")] = 5,
    fields: Annotated[str | None, typer.Option(help="Only these fields, separated by commas.")] = None,
    skip: Annotated[int, typer.Option(min=0, help="Begin after this many samples.")] = 0,
    format: Format = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Show the first samples.

    Long values are cut. With --json each line is one sample: arrays are lists, NaN and infinity are null, and bytes
    are {"bytes": the first 64 in hex, "length": how many there are, "cut": whether that is more than are shown}.

    Example: shardex head data/weather -n 2 --fields station,history
    """
    ds = Dataset(_open(what, format, option))
    if fields is not None:
        ds = ds.select(*fields.split(","))
    features = ds.features
    for number, sample in enumerate(ds.skip(skip).take(count), start=skip):
        if as_json:
            print_json(sample)
            continue
        print(f"sample {number}")
        print_rows(((name, _shown(value, features.get(name))) for name, value in sample.items()), indent="  ")


def _shown(value: Any, feature: Feature | None) -> str:
    """A value in one line of text."""
    if isinstance(feature, Optional):
        feature = feature.feature
    if isinstance(feature, ClassLabel) and value is not None:
        return f"{value} ({feature.name(int(value))})"
    if isinstance(value, np.ndarray):
        first = [f"{one:.4g}" if isinstance(one, float) else str(one) for one in value.ravel()[:_FIRST_VALUES].tolist()]
        dots = ["..."] if value.size > _FIRST_VALUES else []
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]  {' '.join(first + dots)}"
    if isinstance(value, bytes):
        return f"{len(value)} bytes  {value[:16].hex(' ')}{' ...' if len(value) > 16 else ''}"
    if isinstance(value, str):
        return _cut(repr(value), f" ({len(value)} characters)")
    return _cut(json.dumps(plain(value), ensure_ascii=False), "")


def _cut(text: str, rest: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 4]} ...{rest}"


# -- sql ------------------------------------------------------------------------------------------------------


@app.command()
def sql(
    what: What,
    query: Annotated[str, typer.Option("-q", "--query", help="A SELECT over the table ds; _row is a sample's number.")],
    format: Format = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Answer a question in SQL.

    Long values are cut. With --json each line is one row of the answer.

    Example: shardex sql data/weather -q "SELECT source, count(*) FROM ds GROUP BY 1"
    """
    answer = Dataset(_open(what, format, option)).sql(query)
    rows = (row for batch in answer.to_batches() for row in batch.to_pylist())
    if as_json:
        for row in rows:
            print_json(row)
        return
    print_rows([answer.column_names, *([_shown(value, None) for value in row.values()] for row in rows)])


# -- index ----------------------------------------------------------------------------------------------------


@app.command()
def index(
    what: What,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Make it again, even if it fits.")] = False,
    format: Format = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Build the index of a dataset, or bring it up to date.

    Opening a dataset does this too; here you see where the index lies and what it costs.

    Example: shardex index 'corpus/*.jsonl'
    """
    named, name, options = resolve(what, format, option, rebuild=rebuild)
    began, start = time.time(), time.perf_counter()
    rows = open_rows(named, name, **options)
    seconds = time.perf_counter() - start
    found = getattr(rows, "index", None)
    if not isinstance(found, Index):
        _report_none(rows, as_json)
        return
    on_disk = os.path.isfile(found.name)
    built = not on_disk or os.path.getmtime(found.name) >= began - _JUST_NOW
    facts: dict[str, Any] = {
        "index": found.name if on_disk else None,
        "state": "built" if built else "up to date",
        "samples": len(found),
        "bytes": found.nbytes,
        "bytes_per_sample": round(found.nbytes / max(1, len(found)), 1),
        "seconds": round(seconds, 3),
        "mb_per_second": round(size / 1e6 / seconds, 1) if built and (size := _bytes_on_disk(rows)) else None,
    }
    if as_json:
        print_json(facts)
        return
    per_sample, speed = facts.pop("bytes_per_sample"), facts.pop("mb_per_second")
    facts |= {
        "index": found.name,
        "samples": f"{len(found):,}",
        "bytes": f"{size_text(found.nbytes)}, {per_sample} per sample",
    }
    facts["seconds"] = f"{seconds:.3f}" + ("" if speed is None else f", {speed} MB/s of shards")
    print_rows(facts.items())


def _report_none(rows: ShardRows, as_json: bool) -> None:
    if as_json:
        print_json({"index": None, "state": "none needed", "samples": len(rows)})
    else:
        print(f"none is needed: {rows.opened.format} knows where its {len(rows):,} samples lie")


# -- demo -----------------------------------------------------------------------------------------------------


@app.command()
def demo(
    folder: Annotated[str | None, typer.Option(help="Keep the data here; otherwise it is removed again.")] = None,
    samples: Annotated[int, typer.Option(min=100, help="Size of the largest datasets.")] = 50_000,
    as_json: AsJson = False,
) -> None:
    """Write, read and check four kinds of shards, on made-up data.

    Example: shardex demo --folder demo
    """
    with tempfile.TemporaryDirectory(prefix="shardex-demo-") as temporary:
        rows = tour.run(os.path.join(temporary, "demo") if folder is None else folder, samples)
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        print(tour.report(rows, folder))


# -- all others -----------------------------------------------------------------------------------------------

for _command in (upkeep.history, upkeep.restore, upkeep.clean, upkeep.compact, upkeep.verify, upkeep.recover):
    app.command()(_command)


def _open(what: list[str], format: str | None, option: list[str] | None) -> ShardRows:
    named, name, options = resolve(what, format, option)
    return open_rows(named, name, **options)
