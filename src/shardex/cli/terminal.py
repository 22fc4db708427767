"""What all commands share: their arguments, options of formats as text, and how results are printed.

Results go to stdout, as aligned text or as JSON for programs. Text is escaped, so that data cannot write to the
terminal what it likes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, get_type_hints

import numpy as np
import typer

from shardex.errors import SchemaError, ShardexError
from shardex.files import find
from shardex.formats import FORMATS, format_named, recognise

__all__ = [
    "AsJson",
    "Format",
    "Options",
    "What",
    "message",
    "plain",
    "print_json",
    "print_rows",
    "printable",
    "resolve",
    "size_text",
]

_FIRST_BYTES = 64

What = Annotated[
    list[str], typer.Argument(metavar="WHAT", help="A folder, a file, a quoted pattern, or several files.")
]
Format = Annotated[str | None, typer.Option("--format", help=f"One of {', '.join(FORMATS)}; recognised if not given.")]
Options = Annotated[
    list[str] | None, typer.Option("-o", metavar="NAME=VALUE", help="Such as window=1024; may be repeated.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


# -- arguments ------------------------------------------------------------------------------------------------


def resolve(
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


# -- printing -------------------------------------------------------------------------------------------------


def message(error: ShardexError) -> str:
    """What went wrong, without the number that the system's errors begin with."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}"
    return str(error)


def size_text(count: int) -> str:
    """A number of bytes, for people.

    >>> size_text(999), size_text(31_412_000)
    ('999 bytes', '31.4 MB')
    """
    if count < 1000:
        return f"{count} bytes"
    power = min(int(math.log10(count)) // 3, 4)
    return f"{count / 1000**power:.1f} {' kMGT'[power]}B"


def printable(text: str) -> str:
    """The text with escapes for all that terminals act on."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def plain(value: Any) -> Any:
    """The value as JSON can hold it."""
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return {"bytes": value[:_FIRST_BYTES].hex(), "length": len(value), "cut": len(value) > _FIRST_BYTES}
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value if value is None or isinstance(value, str | int) else str(value)


def print_rows(rows: Iterable[Sequence[Any]], indent: str = "") -> None:
    """Aligned columns.

    >>> print_rows([("version", "change"), (1, "create")])
    version  change
    1        create
    """
    lines = [[printable(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True))
        print(f"{indent}{'  '.join(cells)}".rstrip())


def print_json(value: Any) -> None:
    """One line of JSON."""
    print(json.dumps(plain(value)))
