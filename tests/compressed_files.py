"""Content and compressed files for tests: text that compresses about as real text does."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
import pyarrow as pa


@cache
def text(size: int, seed: int = 0) -> bytes:
    """Return lines of JSON of about `size` bytes: an id, and words."""
    random = np.random.default_rng(seed)
    words = ["".join(map(chr, random.integers(97, 123, length))) for length in random.integers(2, 9, 2000)]
    texts = [" ".join(words[k] for k in random.zipf(1.3, count) % 2000) for count in random.integers(20, 200, 500)]
    lines, total = list[str](), 0
    for number in random.integers(0, len(texts), size // 100).tolist():
        lines.append(f'{{"id": {len(lines)}, "text": "{texts[number]}"}}\n')
        total += len(lines[-1])
        if total >= size:
            break
    return "".join(lines).encode()


def zstd(data: bytes) -> bytes:
    """Return one zstd frame, which does not have the size of its content."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue().to_pybytes())


def zstd_with_size(data: bytes) -> bytes:
    """Return one zstd frame that has the size of its content."""
    return bytes(pa.compress(data, "zstd", asbytes=True))


def in_parts(pack: Callable[[bytes], bytes], data: bytes, size: int) -> bytes:
    """Return parts of the data, each compressed, joined: members, streams or frames."""
    return b"".join(pack(data[at : at + size]) for at in range(0, max(1, len(data)), size))


def zipped(members: Mapping[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a zip archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def fast_gzip(data: bytes) -> bytes:
    """Return one gzip member."""
    return gzip.compress(data, 1)


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": fast_gzip,
    "bz2": lambda data: bz2.compress(data, 1),
    "xz": lambda data: lzma.compress(data, preset=0),
    "zst": zstd,
}
"""Functions that compress, by the extension of their files."""
