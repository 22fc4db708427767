"""Decompresses gzip files: ``python -m shardex.compat.data_forager.unzip_files --input-files-path ./data``.

shardex itself reads compressed files as they are (``sx.open("data/*.jsonl.gz")``).
"""

from __future__ import annotations

import argparse
import errno
import gzip
import logging
import os
import shutil
import zlib

from shardex.compat.data_forager.utils import find_files_recursive
from shardex.errors import AlreadyExistsError, FormatError
from shardex.sources import LocalSource

module_logger = logging.getLogger("data_forager.unzip_files")
_EXTENSIONS = (".gz", ".gzip", ".GZ", ".GZIP")


def create_arg_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description="Unzip files")
    parser.add_argument("--input-files-path", type=str, required=True, help="Path to the GZIPed files.")
    parser.add_argument(
        "--output-path",
        type=str,
        required=False,
        help='Folder of the unzipped files; by default the new folder "unzipped" in that of the inputs.',
    )
    return parser


def get_gzip_ext_pos(zipped_file_name: str) -> int:
    """Return where the extension of a compressed file begins; -1 if it has none."""
    return max((zipped_file_name.rfind(one) for one in _EXTENSIONS if zipped_file_name.endswith(one)), default=-1)


def get_unzipped_file_name(zipped_file_path: str) -> str:
    """Return the name of the decompressed file.

    >>> get_unzipped_file_name("data/a.jsonl.gz"), get_unzipped_file_name("b.bin")
    ('a.jsonl', 'b.bin-unzipped')
    """
    name = os.path.basename(zipped_file_path)
    position = get_gzip_ext_pos(name)
    return f"{name}-unzipped" if position == -1 else name[:position]


def unzip_file(input_file_path: str, output_path: str | None = None, logger: logging.Logger | None = None) -> None:
    """Decompress a file into a folder, by default its own; the new file appears whole or not at all."""
    folder = os.path.dirname(input_file_path) if output_path is None else output_path
    name = get_unzipped_file_name(input_file_path)
    (logger or module_logger).debug("%s to %s", input_file_path, os.path.join(folder, name))
    draft = LocalSource(folder or ".").draft()
    try:
        with gzip.open(input_file_path, "rb") as compressed:
            shutil.copyfileobj(compressed, draft.file, 1 << 20)
        draft.publish(name)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FormatError(f"{input_file_path}: expected a whole gzip file, got a damaged one: {error}") from error
    finally:
        draft.discard()


def find_zipped_files(input_path: str) -> list[str]:
    """Return the compressed files at any depth."""
    return find_files_recursive(input_path, [f"*{one}" for one in _EXTENSIONS])


def unzip_files(input_files_path: str, output_path: str | None = None) -> None:
    """Decompress all gzip files below a folder into another one, by default its folder ``unzipped``.

    Two files that would get the same name raise an error before anything is written.
    """
    output_path = os.path.join(input_files_path, "unzipped") if output_path is None else output_path
    paths, names = find_zipped_files(input_files_path), dict[str, str]()
    for path in paths:
        first = names.setdefault(get_unzipped_file_name(path), path)
        if first != path:
            raise AlreadyExistsError(errno.EEXIST, f"expected different names, got that of {first}", path)
    os.makedirs(output_path, exist_ok=True)
    for path in paths:
        unzip_file(path, output_path)


if __name__ == "__main__":
    unzip_files(**vars(create_arg_parser().parse_args()))
