"""Common arguments of the commands, options of formats given as text, and printing of results.

Results are printed to stdout, as aligned text or as JSON. Control characters in data are escaped, so that they cannot
act on the terminal.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin

import numpy as np
import typer

from shardex import catalog
from shardex.dataset import Dataset
from shardex.dataset import open as open_dataset
from shardex.errors import ArgumentError, PluginError, ShardexError
from shardex.files import find
from shardex.formats import FORMATS, format_named, format_names, option_types, recognise
from shardex.sources import parse_size

_FIRST_BYTES = 64
_ADVISED = "rebuild|trust_paths|checksums|truncated|infer_from|decode|cache|bad_lines|delimiter|quote|access|label"
"""Options that messages of the library advise."""


def _format_names() -> str:
    try:
        return ", ".join(format_names())
    except PluginError:  # of an installed package; the commands that need its name, or recognise files, raise it
        return ", ".join(FORMATS)


FORMAT_NAMES = _format_names()
"""The formats, for help texts."""
SOURCES = "A folder, a file, a quoted pattern, several files, or a name in a catalog (@corpus)."
What = Annotated[list[str], typer.Argument(metavar="WHAT", help=SOURCES)]
Format = Annotated[str | None, typer.Option("--format", help=f"One of {FORMAT_NAMES}; recognised if not given.")]
Options = Annotated[
    list[str] | None,
    typer.Option("-o", metavar="NAME=VALUE", help="Option of the format, such as window=1024; may be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]


# -- arguments ------------------------------------------------------------------------------------------------


def resolve(
    what: list[str], format: str | None, option: list[str] | None, **extra: Any
) -> tuple[Any, str, dict[str, Any]]:
    """Return what to open, its format, and the options; `extra` options only if the format has them.

    A name of a catalog stands for the paths, the format and the options of its record.
    """
    paths: Any = what[0] if len(what) == 1 else what  # a shell expands a pattern to several paths
    own: dict[str, Any] = {}
    if is_name(what):
        found = catalog.resolve(paths, parse_options(option, {}).get("trusted"))
        paths, format = found.content.what, format or found.content.format
        own = found.content.open_options | ({} if found.trusted else {"trusted": False})
    format = format or recognise(find(paths))
    types = option_types(format_named(format).open)
    options = own | parse_options(option, types)
    return paths, format, options | {name: value for name, value in extra.items() if name in types}


def is_name(what: list[str]) -> bool:
    """Return True for a name of a catalog."""
    return len(what) == 1 and catalog.is_reference(what[0])


def opened(what: list[str], format: str | None, option: list[str] | None) -> Dataset[Any]:
    """Open what an argument names; data with a name in a catalog are compared with their record."""
    paths, name, options = resolve(what, format, option)
    return open_dataset(what[0] if is_name(what) else paths, format=name, **options)


def parse_options(
    pairs: Iterable[str] | None, types: Mapping[str, Any], but: Container[str] = ("what", "format")
) -> dict[str, Any]:
    """Return options given as ``name=value``, with the types that the format declares; refuse the names in `but`."""
    return dict(_parse_option(pair, types, but) for pair in pairs or ())


def _parse_option(pair: str, types: Mapping[str, Any], but: Container[str]) -> tuple[str, Any]:
    """Return name and value of an option, with the type that the format declares."""
    name, equals, text = pair.partition("=")
    if not equals or not name.isidentifier() or name in but:
        raise ArgumentError(f"expected an option of the format as name=value, got {pair!r}")
    hint = types.get(name, object)
    values = [value for value in _possible_values(text) if _fits(value, hint)]
    if name == "shard_size":
        return name, parse_size(text)
    if not values:
        raise ArgumentError(f"expected {name} to be {_hint_text(hint)}, got {text!r}")
    return name, values[0]


def _possible_values(text: str) -> Iterator[Any]:
    """Yield the possible values of a text, the most specific type first."""
    if text in ("true", "false"):
        yield text == "true"
    for kind in (int, float, str):
        with suppress(ValueError):
            yield kind(text)
    yield text.split(",")


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value has the type of an annotation."""
    if isinstance(hint, UnionType):
        return any(_fits(value, one) for one in get_args(hint))
    if (kind := get_origin(hint)) is None:
        return isinstance(value, hint) and not (isinstance(value, bool) and hint in (int, float))
    return (
        isinstance(value, kind) and not isinstance(value, str) and all(_fits(one, get_args(hint)[0]) for one in value)
    )


def _hint_text(hint: Any) -> str:
    """Return an annotation as a user of the command line gives it.

    >>> _hint_text(int | None), _hint_text(Sequence[str] | bool)
    ('int', 'names separated by commas or true or false')
    """
    kinds = [one for one in (get_args(hint) if isinstance(hint, UnionType) else (hint,)) if one is not NoneType]
    names = {bool: "true or false"}
    return " or ".join(
        names.get(one, "names separated by commas" if get_origin(one) else one.__name__) for one in kinds
    )


# -- printing -------------------------------------------------------------------------------------------------


def message(error: ShardexError) -> str:
    """Return the message of an error, without the errno that begins the text of an OSError.

    >>> message(ShardexError("an old index; open with rebuild=True"))
    'an old index; open with -o rebuild=true'
    """
    if isinstance(error, OSError) and error.strerror:
        return f"{as_options(error.strerror)}: {error.filename}"
    return as_options(str(error))


def as_options(text: str) -> str:
    """Return a message whose advice names options as the command line takes them.

    >>> as_options('it was cut off; open with truncated="warn"')
    'it was cut off; open with -o truncated=warn'
    """
    text = re.sub(r', all of them with sx\.load_dataset\("[^"]+"\)', "", text)
    text = re.sub(r'\bopen one with sx\.open\("([^"]+)"\)', r'give the path of one, "\1"', text)
    text = re.sub(r'sx\.(verify|recover)\("([^"]+)"(?:, (\w+))?\)', _command, text)
    text = re.sub(r"\bwith format=$", "with --to", text)
    text = re.sub(r"\b(mode|format)=\"(\w+)\"", r"--\1 \2", text)
    text = re.sub(rf"\b({_ADVISED})=(True|False|\"\w+\")", lambda found: f"-o {found[1]}={_plain(found[2])}", text)
    return re.sub(r"`sx\.(\w+)`", r"`shardex.\1` in Python", text)


def _command(found: re.Match[str]) -> str:
    return " ".join(filter(None, ["shardex", *found.groups()]))


def _plain(value: str) -> str:
    return value.lower() if value in ("True", "False") else value.strip('"')


def size_text(count: int) -> str:
    """Return a number of bytes as readable text.

    >>> size_text(999), size_text(31_412_000)
    ('999 bytes', '31.4 MB')
    """
    if count < 1000:
        return f"{count} bytes"
    power = min(int(math.log10(count)) // 3, 4)
    return f"{count / 1000**power:.1f} {' kMGT'[power]}B"


def count_text(number: int, noun: str) -> str:
    """Return a number of things as readable text.

    >>> count_text(1, "sample"), count_text(2000, "sample")
    ('1 sample', '2,000 samples')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def printable(text: str) -> str:
    """Return the text with control characters escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def to_json(value: Any) -> Any:
    """Return the value as JSON values."""
    if isinstance(value, np.ndarray | np.generic):
        return to_json((value.astype(str) if value.dtype.kind in "mM" else value).tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return {"bytes": value[:_FIRST_BYTES].hex(), "length": len(value), "cut": len(value) > _FIRST_BYTES}
    if isinstance(value, Mapping):
        return {str(name): to_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(one) for one in value]
    return value if value is None or isinstance(value, str | int) else str(value)


def print_rows(rows: Iterable[Sequence[Any]], indent: str = "") -> None:
    """Print rows as aligned columns.

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
    """Print a value as one line of JSON."""
    print(json.dumps(to_json(value)))
