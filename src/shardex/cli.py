"""The command line: `info`, `head`, `index` and `demo`, each a few lines over the library.

Results go to stdout, as aligned text or with ``--json`` for programs; progress and errors go to stderr. What shardex
refuses is one line and exit code 1, never a traceback. The text shown here is cut and escaped, so that data cannot
write to the terminal what it likes.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version
from typing import Annotated, Any, get_type_hints

import numpy as np
import typer
from typer.core import TyperGroup

from shardex import demo as tour
from shardex.dataset import Dataset
from shardex.errors import SchemaError, ShardexError
from shardex.format import FORMATS, ShardRows, format_named, open_rows, recognise
from shardex.index import Index
from shardex.schema import ClassLabel, Feature, Optional
from shardex.shards import find

__all__ = ["app", "main"]

_WIDTH = 76
_FIRST_VALUES = 6
_FIRST_BYTES = 64
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
            print(f"shardex: {_printable(_message(error))}", file=sys.stderr)
            raise typer.Exit(1) from None
        except BrokenPipeError:
            # Whoever read our output has seen enough; the flush at exit must not complain either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


app = typer.Typer(cls=_Commands, rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)

What = Annotated[
    list[str], typer.Argument(metavar="WHAT", help="A folder, a file, a quoted pattern, or several files.")
]
Format = Annotated[str | None, typer.Option("--format", help=f"One of {', '.join(FORMATS)}; recognised if not given.")]
Options = Annotated[
    list[str] | None, typer.Option("-o", metavar="NAME=VALUE", help="Such as window=1024; may be repeated.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


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
        "path": rows.opened.what,
        "format": rows.opened.format,
        "version": rows.pinned.get("version"),
        "samples": len(rows),
        "shards": len(rows.shard_names()),
        "bytes": _bytes_on_disk(rows),
        "fingerprint": rows.fingerprint,
    }
    if as_json:
        _print_json({**facts, "fields": rows.features.to_json()})
        return
    facts |= {"path": _place(rows), "samples": f"{len(rows):,}", "bytes": _size(facts["bytes"])}
    _print_pairs((name, value) for name, value in facts.items() if value is not None)
    print()
    _print_pairs([("field", "feature"), *((name, str(feature)) for name, feature in rows.features.items())])


def _bytes_on_disk(rows: ShardRows) -> int:
    return sum(os.path.getsize(path) for path in dict.fromkeys(rows.shard_names()))


def _place(rows: ShardRows) -> str:
    what = rows.opened.what
    return what if isinstance(what, str) else f"{what[0]} and {len(what) - 1} more"


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
    ds = Dataset(_open(what, format, option))  # type: ignore[arg-type]
    if fields is not None:
        ds = ds.select(*fields.split(","))
    features = ds.features
    for number, sample in enumerate(ds.skip(skip).take(count), start=skip):
        if as_json:
            _print_json(sample)
            continue
        print(f"sample {number}")
        _print_pairs(((name, _shown(value, features.get(name))) for name, value in sample.items()), indent="  ")


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
    return _cut(json.dumps(_plain(value), ensure_ascii=False), "")


def _cut(text: str, rest: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 4]} ...{rest}"


def _plain(value: Any) -> Any:
    """The value as JSON can hold it."""
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return {"bytes": value[:_FIRST_BYTES].hex(), "length": len(value), "cut": len(value) > _FIRST_BYTES}
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if value is None or isinstance(value, str | int) else str(value)


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
    named, name, options = _resolve(what, format, option, rebuild=rebuild)
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
        "mb_per_second": round(_bytes_on_disk(rows) / 1e6 / seconds, 1) if built else None,
    }
    if as_json:
        _print_json(facts)
        return
    per_sample, speed = facts.pop("bytes_per_sample"), facts.pop("mb_per_second")
    facts |= {
        "index": found.name,
        "samples": f"{len(found):,}",
        "bytes": f"{_size(found.nbytes)}, {per_sample} per sample",
    }
    facts["seconds"] = f"{seconds:.3f}" + ("" if speed is None else f", {speed} MB/s of shards")
    _print_pairs(facts.items())


def _report_none(rows: ShardRows, as_json: bool) -> None:
    if as_json:
        _print_json({"index": None, "state": "none needed", "samples": len(rows)})
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
        _print_json([asdict(row) for row in rows])
    else:
        print(tour.report(rows, folder))


# -- shared by all --------------------------------------------------------------------------------------------


def _open(what: list[str], format: str | None, option: list[str] | None) -> ShardRows:
    named, name, options = _resolve(what, format, option)
    return open_rows(named, name, **options)


def _resolve(
    what: list[str], format: str | None, option: list[str] | None, **extra: Any
) -> tuple[Any, str, dict[str, Any]]:
    """What to open, its format, and the options; extra ones only if the format has them."""
    named = what[0] if len(what) == 1 else what  # several paths are what a shell makes of a pattern
    format = format or recognise(find(named))
    kinds = get_type_hints(format_named(format).open)
    options = dict(_parsed(pair, kinds) for pair in option or ())
    return named, format, options | {name: value for name, value in extra.items() if name in kinds}


def _parsed(pair: str, kinds: Mapping[str, Any]) -> tuple[str, Any]:
    """Name and value of an option, as the format declares it."""
    name, equals, text = pair.partition("=")
    if not equals or not name.isidentifier() or name in ("what", "format"):
        raise SchemaError(f"expected an option of the format as -o name=value, got {pair!r}")
    values = [value for value in _readings(text) if isinstance(value, kinds.get(name, object))]
    if not values:
        raise SchemaError(f"expected {name} to be {kinds[name]}, got {text!r}")
    return name, values[0]


def _readings(text: str) -> Iterator[Any]:
    """What a text may mean, the narrowest first."""
    if text in ("true", "false"):
        yield text == "true"
    for kind in (int, float, str):
        with suppress(ValueError):
            yield kind(text)


def _message(error: ShardexError) -> str:
    """What went wrong, without the number that the system's errors begin with."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}"
    return str(error)


def _size(count: int) -> str:
    """
    >>> _size(999), _size(31_412_000)
    ('999 bytes', '31.4 MB')
    """
    if count < 1000:
        return f"{count} bytes"
    power = min(int(math.log10(count)) // 3, 4)
    return f"{count / 1000**power:.1f} {' kMGT'[power]}B"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _print_pairs(pairs: Iterable[tuple[str, Any]], indent: str = "") -> None:
    lines = [(_printable(name), _printable(str(value))) for name, value in pairs]
    width = max((len(name) for name, _ in lines), default=0)
    for name, value in lines:
        print(f"{indent}{name:<{width}}  {value}")


def _print_json(value: Any) -> None:
    print(json.dumps(_plain(value)))
