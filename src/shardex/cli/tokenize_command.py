"""The command `tokenize`: writes the tokens of documents."""

from __future__ import annotations

import os
import time
from typing import Annotated, Any

import typer

from shardex.cli.convert_command import Extent, errors_of_functions, extent, imported, report
from shardex.cli.terminal import FORMAT_NAMES, AsJson, Format, Options, parse_options, resolve
from shardex.dataset import open as open_dataset
from shardex.formats import check_options, format_named, option_types
from shardex.text import tokenize as tokenize_documents

_TOKEN = "an id, the text of a token, or true for the one that the tokenizer names."
_OWN = ("mode", "metadata")
"""Options of formats that this command sets."""

_WITH_LENGTHS = ("tokens", "arrow")
"""Formats whose tokens are counted without reading them."""


def tokenize(
    inputs: Annotated[
        list[str], typer.Argument(metavar="INPUTS", help="A folder, a file, a quoted pattern, or several files.")
    ],
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
    to: Annotated[str, typer.Option(help=f"Format of the new dataset, one of {FORMAT_NAMES}.")] = "tokens",
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
    paths, name, options = resolve(inputs, format, option)
    create = format_named(to).create
    to_options = parse_options(to_option, option_types(create), but=_OWN)
    check_options(create, to, to_options)
    ds = open_dataset(paths, format=name, **options)
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
