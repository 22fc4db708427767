"""The commands that write new datasets: `convert` any samples, through functions of the user, `tokenize` documents."""

from __future__ import annotations

import importlib
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple

import cloudpickle
import msgspec
import typer

from shardex.cli.terminal import (
    FORMAT_NAMES,
    SOURCES,
    AsJson,
    Format,
    Options,
    What,
    count_text,
    opened,
    parse_options,
    print_json,
    printable,
    size_text,
)
from shardex.dataset import Dataset, write
from shardex.dataset import open as open_dataset
from shardex.errors import ArgumentError, FormatError, NotFoundError, ShardexError, nearest
from shardex.formats import ShardRows, check_options, format_named, option_types, target_format
from shardex.sources import parent_of, place_of
from shardex.text import tokenize as tokenize_documents

_MOST_LINES = 10
"""Samples that are left out are listed up to this number."""
_FRAME = re.compile(r'File "(.+)", line (\d+), in ')
_FUNCTION = "A function as module:name, of a module in this folder or an installed one;"


def convert(
    what: What,
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A folder or URL for the new dataset, or one file: out.parquet.")
    ],
    to: Annotated[
        str | None, typer.Option(help=f"Format of a folder, one of {FORMAT_NAMES}; arrow if not given.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Number of processes.")] = None,
    executor: Annotated[str | None, typer.Option(help="threads, processes, ray, or ray://host:port.")] = None,
    where: Annotated[str | None, typer.Option(help="Only samples that fulfil this SQL condition.")] = None,
    fields: Annotated[str | None, typer.Option(help="Only these fields, separated by commas.")] = None,
    transform: Annotated[str | None, typer.Option(help=f"{_FUNCTION} it returns a sample or a list.")] = None,
    filter: Annotated[str | None, typer.Option(help=f"{_FUNCTION} it returns true to keep a sample.")] = None,
    schema: Annotated[str | None, typer.Option(help="Fields of the results, a dict or class: module:name.")] = None,
    batched: Annotated[bool, typer.Option("--batched", help="Call these functions with batches.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Number of samples in a batch.")] = 256,
    mode: Annotated[str, typer.Option(help="create, append or overwrite.")] = "create",
    on_error: Annotated[str, typer.Option(help="raise, or skip to leave out samples with errors.")] = "raise",
    to_option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Option of the new format, such as shard_rows=1000; may be repeated."),
    ] = None,
    format: Format = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Write a dataset to another place or in another format.

    A command that was stopped is continued by the same command.

    Example: shardex convert 'corpus/*.jsonl' data/corpus --to parquet --workers 4
    """
    to, _ = target_format(target, given := to)
    create = format_named(to).create
    to_options = parse_options(to_option, option_types(create), but={"mode"})
    check_options(create, to, to_options)
    try:
        ds = opened(what, format, option)
    except FormatError as error:
        if format is None or given is not None:
            raise
        raise FormatError(f"{error}; --format is that of the input, did you mean --to {format}?") from error
    ds = ds if where is None else ds.where(where)
    ds = ds if fields is None else ds.select(*fields.split(","))
    before = extent(target, to) if mode == "append" else Extent()
    start = time.perf_counter()
    functions = {"transform": imported(transform), "filter": imported(filter)}
    with errors_of_functions():
        result = write(
            target,
            ds,
            imported(schema),
            **functions,
            batched=batched,
            batch_size=batch_size,
            workers=workers,
            executor=executor,
            mode=mode,
            on_error=on_error,
            format=to,
            **to_options,
        )
    report(target, to, result, before, time.perf_counter() - start, as_json)


@contextmanager
def errors_of_functions() -> Iterator[None]:
    """Turn an error in a function of the user into one of shardex, which is printed as one line."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".* samples were left out")  # they are listed at the end
            yield
    except ShardexError:
        raise
    except Exception as error:
        notes = getattr(error, "__notes__", [])
        if not any(note.startswith("in ") for note in notes):
            raise
        told = ShardexError(f"{type(error).__name__}: {error}{_origin(error)}")
        for note in notes:
            told.add_note(note)
        raise told from error


def _origin(error: Exception) -> str:
    """Return file and line where an error was raised, here or in a worker."""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    found = _FRAME.findall(str(error.__cause__)) or frames
    return f" ({found[-1][0]}, line {found[-1][1]})" if found else ""


def imported(name: str | None) -> Any:
    """Return the function, class or value that is given as ``module:name``."""
    if name is None:
        return None
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise ArgumentError(f"expected module:name, such as prepare:tokenize, got {name!r}")
    if "" not in sys.path:
        sys.path.insert(0, "")  # the folder of the shell, as for a script
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise NotFoundError(f"expected the module {module_name} in this folder or installed, got {error}") from error
    if module.__file__ is not None and os.path.abspath(module.__file__).startswith(os.path.join(os.getcwd(), "")):
        cloudpickle.register_pickle_by_value(module)  # nodes of a cluster do not have it
    if not hasattr(module, attribute):
        raise ArgumentError(
            f"expected a name of {module.__file__}, got {attribute!r}{nearest(attribute, vars(module))}"
        )
    return getattr(module, attribute)


# -- report ---------------------------------------------------------------------------------------------------


class Extent(NamedTuple):
    """Size of a dataset."""

    samples: int = 0
    files: int = 0
    bytes: int = 0


def extent(target: str, format: str) -> Extent:
    """Return the size of a dataset, zeros if there is none."""
    place = place_of(parent_of(target)[0] if target_format(target, format)[1] else target)
    try:
        rows = open_dataset(target, format=format).stored.rows
    except NotFoundError:
        return Extent()
    assert isinstance(rows, ShardRows)
    names = [*dict.fromkeys(rows.shard_names())]
    inside = [name.removeprefix(place.url).lstrip("/") for name in names]
    return Extent(len(rows), len(names), sum(stat.size for stat in place.stats(inside)))


def report(
    target: str,
    to: str,
    result: Dataset[Any],
    before: Extent,
    seconds: float,
    as_json: bool,
    tokens: int | None = None,
) -> None:
    """Print what was added to a dataset: samples, tokens if they are counted, files, bytes, and the time it took."""
    after = extent(target, to)
    samples, files, size = (new - old for new, old in zip(after, before, strict=True))
    speed = size / max(seconds, 1e-9)
    left_out = getattr(result, "left_out", [])
    if as_json:
        facts = {"path": place_of(target).url, "format": to, "samples": samples, "files": files, "bytes": size}
        facts |= {} if tokens is None else {"tokens": tokens}
        facts |= {
            "seconds": round(seconds, 3),
            "mb_per_second": round(speed / 1e6, 3),
            "left_out": msgspec.to_builtins(left_out),
        }
        print_json(facts)
        return
    for one in left_out[:_MOST_LINES]:
        print(printable(f"left out: {one.place}: {one.error}"))
    if len(left_out) > _MOST_LINES:
        print(f"left out: {count_text(len(left_out) - _MOST_LINES, 'more sample')} (--json lists all)")
    counts = [count_text(samples, "sample"), *([] if tokens is None else [count_text(tokens, "token")])]
    counts += [count_text(files, "file"), size_text(size)]
    print(f"{', '.join(counts)}, {seconds:.1f} s, {size_text(int(speed))}/s")


_TOKEN = "an id, the text of a token, or true for the one that the tokenizer names."
_OWN = ("mode", "metadata")
"""Options of formats that this command sets."""

_WITH_LENGTHS = ("tokens", "arrow")
"""Formats whose tokens are counted without reading them."""


def tokenize(
    inputs: Annotated[list[str], typer.Argument(metavar="INPUTS", help=SOURCES)],
    tokenizer: Annotated[
        str,
        typer.Argument(
            metavar="TOKENIZER",
            help="A tokenizer.json, a folder that has one, a sentencepiece .model, or module:name.",
        ),
    ],
    out: Annotated[str, typer.Argument(metavar="OUT", help="A folder or URL for the tokens.")],
    field: Annotated[str, typer.Option(help="Field that has the text.")] = "text",
    bos: Annotated[str | None, typer.Option(help=f"Token before each document: {_TOKEN}")] = None,
    eos: Annotated[str | None, typer.Option(help=f"Token after each document: {_TOKEN}")] = None,
    add_special_tokens: Annotated[
        bool, typer.Option("--add-special-tokens", help="Tokens that the settings of the tokenizer add.")
    ] = False,
    dtype: Annotated[str | None, typer.Option(help="uint16, uint32, ...; fits the vocabulary if not given.")] = None,
    aux: Annotated[str | None, typer.Option(help="Arrays per token: positions, segment_ids, or both.")] = None,
    messages: Annotated[str | None, typer.Option(help="Field of conversations, to encode instead of texts.")] = None,
    template: Annotated[
        str | None, typer.Option(help="chatml, llama3, a file with a Jinja template, or module:name of a function.")
    ] = None,
    train_on: Annotated[str, typer.Option(help="Roles whose messages the loss counts, or all.")] = "assistant",
    tools: Annotated[str | None, typer.Option(help="Field of the tools that each conversation may call.")] = None,
    keep: Annotated[str | None, typer.Option(help="Fields to store too, separated by commas (--to arrow).")] = None,
    to: Annotated[
        str | None, typer.Option(help=f"Format of a folder, one of {FORMAT_NAMES}; tokens if not given.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Number of processes.")] = None,
    executor: Annotated[str | None, typer.Option(help="threads, processes, ray, or ray://host:port.")] = None,
    batched: Annotated[bool, typer.Option("--batched", help="A function gets a list of texts.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Number of documents in a batch.")] = 1000,
    mode: Annotated[str, typer.Option(help="create, append or overwrite.")] = "create",
    on_error: Annotated[str, typer.Option(help="raise, or skip to leave out documents with errors.")] = "raise",
    to_option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Option of the new format, such as shard_size=1000000."),
    ] = None,
    format: Format = None,
    option: Options = None,
    as_json: AsJson = False,
) -> None:
    """Write the tokens of documents.

    A command that was stopped is continued by the same command.

    Example: shardex tokenize 'corpus/*.jsonl' tokenizer.json data/tokens --eos '<|endoftext|>' --workers 4
    """
    to, _ = target_format(out, to, "tokens")
    create = format_named(to).create
    to_options = parse_options(to_option, option_types(create), but=_OWN)
    check_options(create, to, to_options)
    ds = opened(inputs, format, option)
    before = extent(out, to) if mode == "append" else Extent()
    start = time.perf_counter()
    with errors_of_functions():
        result = tokenize_documents(
            ds,
            imported(tokenizer) if _is_name(tokenizer) else tokenizer,
            out,
            field=field,
            dtype=dtype,
            bos=_token(bos),
            eos=_token(eos),
            add_special_tokens=add_special_tokens,
            batched=batched,
            aux=None if aux is None else aux.split(","),
            messages=messages,
            template=_template(template),
            train_on="all" if train_on == "all" else tuple(train_on.split(",")),
            tools=tools,
            keep=() if keep is None else keep.split(","),
            batch_size=batch_size,
            workers=workers,
            executor=executor,
            on_error=on_error,
            format=to,
            mode=mode,
            **to_options,
        )
    seconds = time.perf_counter() - start
    tokens = int(result.lengths("tokens")[before.samples :].sum()) if to in _WITH_LENGTHS else None
    report(out, to, result, before, seconds, as_json, tokens)


def _is_name(text: str) -> bool:
    """Return True for ``module:name``."""
    return ":" in text and not os.path.exists(text)


def _template(text: str | None) -> Any:
    """Return a template as `tokenize` takes it: a name, the content of a file, or a function."""
    if text is None or not os.path.isfile(text):
        return imported(text) if text is not None and _is_name(text) else text
    with open(text, encoding="utf-8") as file:
        return file.read()


def _token(text: str | None) -> Any:
    """Return a token as `tokenize` takes it.

    >>> _token("5"), _token("true"), _token("<s>"), _token(None)
    (5, True, '<s>', None)
    """
    if text is None or not text.isdecimal():
        return True if text == "true" else text
    return int(text)
