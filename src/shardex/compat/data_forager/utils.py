"""Finds and sorts files."""

import glob
import os
import unicodedata

from shardex.files import natural_key


def find_files_recursive(input_path: str, extension_patterns: list[str]) -> list[str]:
    """Return the files at any depth whose names match a pattern such as ``*.jsonl``, each once."""
    found: dict[str, None] = {}
    for pattern in extension_patterns:
        matches = sorted(glob.glob(os.path.join(glob.escape(input_path), "**", pattern), recursive=True))
        found.update(dict.fromkeys(path for path in matches if os.path.isfile(path)))
    return list(found)


def natural_sort(paths: list[str]) -> list[str]:
    """Sort paths so that numbers in them ascend by value, without regard to case; é comes after e, not after z.

    Paths that differ only in case, or in zeros before a number, keep their order.

    >>> natural_sort(["part10", "Part2", "part1", "z", "é", "Z"])
    ['é', 'part1', 'Part2', 'part10', 'z', 'Z']
    """
    return sorted(paths, key=lambda path: natural_key(unicodedata.normalize("NFD", path)))
