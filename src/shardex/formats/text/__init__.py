"""Text files: samples of one line each (`.txt`), or of one file each (`.md`, `.py`, ...), with the field `text`.

`LineScanner` finds the lines once, `DocumentScanner` the extent of whole files; an `Index` stores them, and each sample
is a byte range. A byte order mark and carriage returns before newlines are left out. `TextWriter` writes lines.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardex.errors import ArgumentError, SchemaError
from shardex.features import Bytes, Features, Text, codecs
from shardex.files import Files, Index, Scan
from shardex.formats.join_shards import JoinShards
from shardex.formats.lines import BOM, LineRows, LineScanner, TextRows, data_files
from shardex.formats.registry import Format
from shardex.formats.sample_writer import SeriesWriter
from shardex.formats.signatures import DOCUMENTS
from shardex.sources import ByteRange, Source
from shardex.workers import ExecutorLike

__all__ = [
    "FORMAT",
]

EXTENSIONS = (".txt",)
OWNED = r"[^/]+-\d{5,}\.txt"
"""Regular expression of the files that the writer makes: overwriting must not remove other texts."""


def open(
    files: Files,
    *,
    schema: Features | None = None,
    lines: bool | None = None,
    decode: str = "text",
    field: str | None = None,
    rebuild: bool = False,
    progress: bool | None = None,
    workers: int | None = None,
    executor: ExecutorLike = None,
) -> TextRows:
    """Open the lines of these files, or with ``lines=False`` whole files, as one field.

    By default documents such as ``a.md``, ``a.html`` and ``a.py`` are one sample each, and other files are lines.

    ``decode="bytes"`` returns them undecoded. The field is called `field`, by default `text`, or `data` for bytes.
    """
    if decode not in ("text", "bytes"):
        raise ArgumentError(
            f'expected decode to be "text" or "bytes" for the format text, got {decode!r}; '
            'to parse each line as JSON, open with format="jsonl"'
        )
    files = _texts(files)
    lines = _are_lines(files) if lines is None else lines
    scanner = LineScanner(skip_blank=False) if lines else DocumentScanner()
    index = Index.of(files, scanner, rebuild=rebuild, progress=progress, workers=workers, executor=executor)
    kind = LineRows if lines else DocumentRows
    if field is not None:
        schema = Features({field: Text() if decode == "text" else Bytes()})
    return kind(files, index, decode, None if schema is None else Features.of(schema))


def _texts(files: Files) -> Files:
    """Return the texts of a folder of the kinds that are data; among them those called README, too."""
    if not files.folder:
        return files
    kinds = {os.path.splitext(path)[1].lower() for path in files.data} & {*EXTENSIONS, *DOCUMENTS}
    return files.having(*sorted(kinds)) if kinds else data_files(files, EXTENSIONS, DOCUMENTS)


def _are_lines(files: Files) -> bool:
    documents = {path.lower().endswith(DOCUMENTS) for path in files.paths}
    if len(documents) > 1:
        raise ArgumentError(
            f"{files}: expected files of lines ({', '.join(EXTENSIONS)}) or documents ({', '.join(DOCUMENTS)}), got "
            "both; open with lines=False if each file is one sample, or with lines=True"
        )
    return documents != {True}


@dataclass(frozen=True)
class DocumentScanner:
    """Finds one sample in each file: all of it, without a byte order mark.

    >>> from shardex.sources.memory import MemorySource
    >>> DocumentScanner().scan(MemorySource({"a.txt": b"one\\ntwo"}), "a.txt")["length"].tolist()
    [7]
    """

    in_python: bool = False

    @property
    def name(self) -> str:
        """Name and version of the scanner; a new version rebuilds indexes."""
        return "documents 1"

    def scan(self, source: Source, path: str) -> Scan:
        """Return offset and length of the one sample."""
        size = source.stat(path).size
        head = bytes(source.read(path, [ByteRange(0, min(size, len(BOM)))])[0])
        begin = len(BOM) if head == BOM else 0
        return {"offset": np.array([begin]), "length": np.array([size - begin])}


class DocumentRows(TextRows):
    """Samples that are whole files."""


# -- writing --------------------------------------------------------------------------------------------------


class TextWriter(SeriesWriter):
    """Writes samples of one text field as lines of ``part-00000.txt`` and so on."""

    def __init__(
        self,
        path: str,
        features: Features,
        *,
        mode: str = "create",
        shard_rows: int = 1_000_000,
        shard_size: int = 256 << 20,
        prefix: str = "part",
    ) -> None:
        if list(features.values()) != [Text()]:
            raise SchemaError(
                f"expected one field of text for the format text, got {features}; choose the format jsonl for others"
            )
        (self._field,) = features
        options: Any = {"prefix": prefix, "extension": ".txt", "rows": shard_rows, "size": shard_size}
        super().__init__(path, mode, features, OWNED, **options)

    def _encode(self, sample: Mapping[str, Any]) -> bytes:
        text: str = sample[self._field]
        if "\n" in text or text.endswith("\r") or text.startswith("\ufeff"):
            raise SchemaError(
                f"expected text that one line can hold, got {text[:60]!r}, which would be read as something else: a "
                "newline, a carriage return at the end, or a byte order mark; choose the format jsonl"
            )
        return codecs.TEXT.encode(text) + b"\n"


FORMAT = Format(open, TextWriter, JoinShards(OWNED, ".txt"), only_field="text")
