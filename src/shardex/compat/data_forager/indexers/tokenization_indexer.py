"""Functions that make indexers which tokenize JSON lines."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from shardex.compat.data_forager.index_stores.common import IndexStoreInterface
from shardex.compat.data_forager.index_stores.fs_based import IndexStore
from shardex.compat.data_forager.indexers.text_lines import (
    FileTextLinesIndexer,
    SampleData,
    SampleGeneratorInterface,
)
from shardex.compat.data_forager.sample_generators.aux.common import AuxDataGenerator, Part
from shardex.compat.data_forager.sample_generators.tokenization import (
    ProcessTextLineFunc,
    TokenizedSampleGenerator,
    TokenizerFunc,
)
from shardex.compat.data_forager.sample_generators.tokenization_with_aux import (
    ProcessPartsFunc,
    TokenizedSampleWithAuxGenerator,
)
from shardex.compat.data_forager.utils import find_files_recursive, natural_sort
from shardex.errors import ArgumentError
from shardex.formats.jsonl import decode_json

__all__ = [
    "AuxDataGenerator",
    "FileTextLinesIndexer",
    "Part",
    "ProcessPartsFunc",
    "ProcessTextLineFunc",
    "SampleData",
    "SampleGeneratorInterface",
    "TokenizedSampleGenerator",
    "TokenizerFunc",
    "create_tokenize_and_index_jsonl_text_func",
    "create_tokenize_and_index_with_aux_func",
    "get_text_from_jsonl",
    "module_logger",
]

module_logger = logging.getLogger("data_forager.tokenization_indexer")


def get_text_from_jsonl(jsonl_bytes: bytes, text_key: str = "text", text_encoding: str = "utf-8") -> str:
    """Return the text of a line of JSON.

    >>> get_text_from_jsonl(b'{"body": "hello"}', text_key="body")
    'hello'
    """
    data = jsonl_bytes if text_encoding == "utf-8" else jsonl_bytes.decode(text_encoding).encode()
    text: str = decode_json(data)[text_key]
    return text


def create_tokenize_and_index_jsonl_text_func(
    tokenizer_func: TokenizerFunc,
    eos_idx: int,
    input_base_path: str | None = None,
    input_file_paths: list[str] | None = None,
    output_base_path: str | None = None,
    index_store: IndexStoreInterface | None = None,
    process_text_line_func: ProcessTextLineFunc | None = None,
    logger: logging.Logger | None = None,
    name: str | None = None,
    **sample_generator_kwargs: Any,
) -> FileTextLinesIndexer:
    """Return an indexer that tokenizes the texts of JSON lines and stores samples of tokens.

    The lines are those of `input_file_paths`, or of all ``.jsonl`` files below `input_base_path`; their texts are what
    `process_text_line_func` returns, by default `get_text_from_jsonl`. Files of tokens (``tokenized-samples``) and the
    index are in `output_base_path`, by default in `input_base_path`. `sample_generator_kwargs` are those of
    `TokenizedSampleGenerator`: `sample_size`, `token_dtype` and others.
    """

    def make(**options: Any) -> TokenizedSampleGenerator:
        return TokenizedSampleGenerator(
            process_text_line_func=process_text_line_func or get_text_from_jsonl,
            tokenizer_func=tokenizer_func,
            eos_idx=eos_idx,
            **options,
        )

    return _indexer(
        make,
        "Tokenizing and indexing",
        (input_base_path, input_file_paths, output_base_path),
        index_store,
        logger,
        name,
        sample_generator_kwargs,
    )


def create_tokenize_and_index_with_aux_func(
    process_parts_func: ProcessPartsFunc,
    tokenizer_func: TokenizerFunc,
    eos_idx: int,
    aux_generators: dict[str, AuxDataGenerator],
    input_base_path: str | None = None,
    input_file_paths: list[str] | None = None,
    output_base_path: str | None = None,
    index_store: IndexStoreInterface | None = None,
    logger: logging.Logger | None = None,
    name: str | None = None,
    **sample_generator_kwargs: Any,
) -> FileTextLinesIndexer:
    """Return an indexer that tokenizes the parts of JSON lines and stores tokens with other arrays.

    `process_parts_func` returns the parts of a line; `aux_generators` make an array with one value for each token, such
    as a mask for the loss. Inputs and outputs are those of `create_tokenize_and_index_jsonl_text_func`;
    `sample_generator_kwargs` are those of `TokenizedSampleWithAuxGenerator`.
    """

    def make(**options: Any) -> TokenizedSampleWithAuxGenerator:
        return TokenizedSampleWithAuxGenerator(
            process_parts_func=process_parts_func,
            tokenizer_func=tokenizer_func,
            eos_idx=eos_idx,
            aux_generators=aux_generators,
            **options,
        )

    return _indexer(
        make,
        "Tokenizing with aux data and indexing",
        (input_base_path, input_file_paths, output_base_path),
        index_store,
        logger,
        name,
        sample_generator_kwargs,
    )


def _indexer(
    make: Callable[..., SampleGeneratorInterface],
    description: str,
    places: tuple[str | None, list[str] | None, str | None],
    store: IndexStoreInterface | None,
    logger: logging.Logger | None,
    name: str | None,
    options: dict[str, Any],
) -> FileTextLinesIndexer:
    """Return the indexer with the generator that `make` returns; `places` are inputs and outputs."""
    input_base_path, paths, output_base_path = places
    log, output = logger or module_logger, output_base_path or input_base_path
    if paths is None:
        if input_base_path is None:
            raise ArgumentError("expected input_base_path= or input_file_paths=, got neither")
        paths = natural_sort(find_files_recursive(input_base_path, ["*.jsonl", "*.JSONL"]))
        log.info("%d JSONL files in %s", len(paths), input_base_path)
    if output is None and (store is None or "base_output_path" not in options):
        raise ArgumentError(
            "expected output_base_path= or input_base_path=, got neither: they say where tokens and index are stored; "
            "without them, pass index_store= and base_output_path="
        )
    if output is not None:
        options = {"base_output_path": os.path.join(output, "tokenized-samples"), **options}
        log.info("index in %s, tokens in %s", output, options["base_output_path"])
    made = IndexStore(base_path=output) if store is None and output is not None else store
    assert made is not None
    return FileTextLinesIndexer(paths, made, make(**options), description, name)
