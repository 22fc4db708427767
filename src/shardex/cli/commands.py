"""The application `shardex` and its commands `info`, `head`, `show`, `sql`, `index` and `demo`.

It registers all others, which are in `writing_commands`, `store_commands` and `catalog_commands`. Results go to stdout,
progress and errors to stderr. An error of shardex is one line and exit code 1, not a traceback; its notes are lines of
their own.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version
from typing import Annotated, Any

import numpy as np
import typer
from typer.core import TyperGroup

from shardex.cli import catalog_commands, store_commands
from shardex.cli import demo as demo_script
from shardex.cli.terminal import (
    AsJson,
    Format,
    Options,
    What,
    as_options,
    message,
    opened,
    print_json,
    print_rows,
    printable,
    resolve,
    size_text,
    to_json,
)
from shardex.cli.writing_commands import convert, tokenize
from shardex.dataset import Dataset, bytes_on_disk
from shardex.errors import ShardexError
from shardex.features import ClassLabel, Feature, Image, Optional
from shardex.files import Index, display_name
from shardex.formats import ShardRows, open_rows
from shardex.kernel import KERNEL
from shardex.media import image_info

_WIDTH = 76
_FIRST_VALUES = 6
_CLOCK_LAG = 0.02
"""Seconds by which file times may lag behind the system clock (one tick of the kernel)."""


Fields = Annotated[str | None, typer.Option(help="Only these fields, separated by commas.")]


class _Commands(TyperGroup):
    """Turns errors of any command into one line on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ShardexError as error:
            print(f"shardex: {printable(message(error))}", file=sys.stderr)
            _print_notes(error)
            raise typer.Exit(1) from None
        except KeyboardInterrupt as error:
            _print_notes(error)
            raise typer.Exit(130) from None


def _print_notes(error: BaseException) -> None:
    for note in getattr(error, "__notes__", ()):
        print(f"shardex: {printable(as_options(note))}", file=sys.stderr)


app = typer.Typer(cls=_Commands, rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)


def main() -> None:
    """Run the command line."""
    warnings.formatwarning = lambda message, *_, **__: f"shardex: warning: {message}\n"
    try:
        try:
            app(prog_name="shardex")
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:
            raise
        if error.errno != errno.EPIPE:  # else the process that reads our output, such as `head`, has ended
            print(f"shardex: cannot write the output: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the flush at exit must not fail either
        sys.exit(1)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"shardex {version('shardex')}, kernel: {KERNEL}")
        raise typer.Exit()


@app.callback(no_args_is_help=True)
def _top(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, help="Print version and kernel."),
    ] = False,
) -> None:
    """One dataset API over sharded files. `shardex COMMAND --help` shows an example of each command."""


# -- info -----------------------------------------------------------------------------------------------------


@app.command()
def info(what: What, format: Format = None, option: Options = None, as_json: AsJson = False) -> None:
    """Show format, size and fields of a dataset.

    Example: shardex info data/weather
    """
    dataset = opened(what, format, option)
    rows = dataset.stored.rows
    assert isinstance(rows, ShardRows)
    facts: dict[str, Any] = {
        "path": _path(rows) if isinstance(rows.opened.what, str) else [*map(display_name, rows.opened.what)],
        "format": rows.opened.format,
        "version": rows.pinned.get("version"),
        "samples": len(rows),
        "shards": rows.shard_count,
        "bytes": bytes_on_disk(rows),
        "fingerprint": dataset.fingerprint,
    }
    if (sampled := getattr(rows, "sampled_rows", None)) is not None:
        facts["fields found in"] = f"{sampled:,} samples (-o infer_from=all reads all)"
    if as_json:
        print_json({**facts, "fields": rows.features.to_json()})
        return
    facts |= {"path": _path(rows), "samples": f"{len(rows):,}"}
    facts["bytes"] = None if facts["bytes"] is None else size_text(facts["bytes"])
    print_rows((name, value) for name, value in facts.items() if value is not None)
    print()
    print_rows([("field", "feature"), *((name, str(feature)) for name, feature in rows.features.items())])


def _path(rows: ShardRows) -> str:
    what = rows.opened.what
    return display_name(what) if isinstance(what, str) else f"{display_name(what[0])} and {len(what) - 1} more"


# -- head -----------------------------------------------------------------------------------------------------


@app.command()
def head(
    what: What,
    count: Annotated[int, typer.Option("-n", "--count", min=0, help="Number of samples.")] = 5,
    fields: Fields = None,
    skip: Annotated[int, typer.Option(min=0, help="Number of samples to skip first.")] = 0,
    format: Format = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Show the first samples.

    Long values are cut off. With --json each line is one sample: arrays are lists, NaN and infinity are null, and bytes
    are {"bytes": the first 64 in hex, "length": their number, "cut": true if there are more than 64}.

    Example: shardex head data/weather -n 2 --fields station,history
    """
    ds = _chosen(opened(what, format, option).stored, fields)
    features = ds.features
    for number, sample in enumerate(ds.skip(skip).take(count), start=skip):
        if as_json:
            print_json(sample)
            continue
        print(f"sample {number}")
        print_rows(((name, _format_value(value, features.get(name))) for name, value in sample.items()), indent="  ")


def _format_value(value: Any, feature: Feature | None) -> str:
    """Return a value as one line of text."""
    if isinstance(feature, Optional):
        feature = feature.feature
    if isinstance(feature, ClassLabel) and value is not None:
        return f"{value} ({feature.name(int(value))})"
    if isinstance(value, np.ndarray):
        first = [f"{one:.4g}" if isinstance(one, float) else str(one) for one in value.ravel()[:_FIRST_VALUES].tolist()]
        dots = ["..."] if value.size > _FIRST_VALUES else []
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]  {' '.join(first + dots)}"
    if isinstance(value, bytes):
        if isinstance(feature, Image):
            with suppress(ShardexError):
                found = image_info(value)
                return f"{found.format} {found.height} x {found.width}  {len(value)} bytes"
        return f"{len(value)} bytes  {value[:16].hex(' ')}{' ...' if len(value) > 16 else ''}"
    if isinstance(value, str):
        return _shorten(repr(value), f" ({len(value)} characters)")
    return _shorten(json.dumps(to_json(value), ensure_ascii=False), "")


def _shorten(text: str, rest: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 4]} ...{rest}"


# -- show -----------------------------------------------------------------------------------------------------


@app.command()
def show(
    what: What,
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="The file to write: .html or .png.")],
    count: Annotated[int, typer.Option("-n", "--count", min=0, help="Number of samples.")] = 16,
    fields: Fields = None,
    skip: Annotated[int, typer.Option(min=0, help="Number of samples to skip first.")] = 0,
    format: Format = None,
    option: Options = None,
) -> None:
    """Write the first samples as pictures to a file.

    Images, first frames of videos, plots of arrays and audio, names of classes, text; at most 400 samples.

    Example: shardex show data/photos --out photos.html -n 50
    """
    figure = _chosen(opened(what, format, option).stored, fields).skip(skip).show(count, path=out)
    print(f"{figure.title} - in {printable(out)}")


# -- sql ------------------------------------------------------------------------------------------------------


@app.command()
def sql(
    what: What,
    query: Annotated[
        str, typer.Option("-q", "--query", help="A SELECT over the table ds; _row is the number of a sample.")
    ],
    format: Format = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Run an SQL query over a dataset.

    Long values are cut off. With --json each line is one row of the result.

    Example: shardex sql data/weather -q "SELECT source, count(*) FROM ds GROUP BY 1"
    """
    result = opened(what, format, option).stored.sql(query)
    rows = (row for batch in result.to_batches() for row in batch.to_pylist())
    if as_json:
        for row in rows:
            print_json(row)
        return
    print_rows([result.column_names, *([_format_value(value, None) for value in row.values()] for row in rows)])


# -- index ----------------------------------------------------------------------------------------------------


@app.command()
def index(
    what: What,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Build it again, even if it is up to date.")] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Read files in this number of processes.")] = None,
    format: Format = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Build or update the index of a dataset.

    Opening a dataset does the same; this command also shows where the index is stored and how large it is.

    Example: shardex index 'corpus/*.jsonl'
    """
    paths, name, options = resolve(what, format, option, rebuild=rebuild, workers=workers)
    began, start = time.time(), time.perf_counter()
    rows = open_rows(paths, name, **options)
    seconds = time.perf_counter() - start
    found = getattr(rows, "index", None)
    if not isinstance(found, Index):
        _report_no_index(rows, as_json)
        return
    on_disk = os.path.isfile(found.name)
    built = not on_disk or os.path.getmtime(found.name) >= began - _CLOCK_LAG
    facts: dict[str, Any] = {
        "index": found.name if on_disk else None,
        "state": "built" if built else "up to date",
        "samples": len(found),
        "bytes": found.nbytes,
        "bytes_per_sample": round(found.nbytes / max(1, len(found)), 1),
        "seconds": round(seconds, 3),
        "mb_per_second": round(size / 1e6 / seconds, 1) if built and (size := bytes_on_disk(rows)) else None,
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


def _report_no_index(rows: ShardRows, as_json: bool) -> None:
    if as_json:
        print_json({"index": None, "state": "none needed", "samples": len(rows)})
    else:
        print(f"no index needed: {rows.opened.format} finds its {len(rows):,} samples without one")


# -- demo -----------------------------------------------------------------------------------------------------


@app.command()
def demo(
    folder: Annotated[
        str | None, typer.Option(help="Folder for the data, which is kept; by default a temporary one.")
    ] = None,
    samples: Annotated[int, typer.Option(min=100, help="Number of samples in the largest datasets.")] = 50_000,
    as_json: AsJson = False,
) -> None:
    """Write, read and check generated datasets in four formats.

    Example: shardex demo --folder demo
    """
    with tempfile.TemporaryDirectory(prefix="shardex-demo-") as temporary:
        rows = demo_script.run(os.path.join(temporary, "demo") if folder is None else folder, samples)
    if as_json:
        print_json([asdict(row) for row in rows])
    else:
        print(demo_script.report(rows, folder))


# -- commands of other modules ---------------------------------------------------------------------------------

for _command in (
    convert,
    tokenize,
    store_commands.history,
    store_commands.restore,
    store_commands.clean,
    store_commands.compact,
    store_commands.verify,
    store_commands.recover,
):
    app.command()(_command)
app.add_typer(catalog_commands.group, name="catalog")


def _chosen(ds: Dataset, fields: str | None) -> Dataset:
    return ds if fields is None else ds.select(*fields.split(","))
