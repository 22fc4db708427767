"""``atdata schema show`` and ``atdata schema diff``."""

import sys

from shardex.compat.atdata._dataset import Dataset
from shardex.compat.atdata._named import dataset_of_name
from shardex.compat.atdata._samples import DictSample
from shardex.errors import ShardexError

__all__ = ["schema_diff", "schema_show"]


def schema_show(dataset_ref: str) -> int:
    """Print the fields of the first sample of a dataset."""
    fields = _fields(dataset_ref)
    print(f"Schema for: {dataset_ref}", f"Fields ({len(fields)}):", sep="\n")
    for name, kind in fields.items():
        print(f"  {name}: {kind}")
    return 0


def schema_diff(url_a: str, url_b: str) -> int:
    """Print which fields differ between two datasets; the exit code is 0 if none do, 1 otherwise, 2 for an error."""
    try:
        a, b = _fields(url_a), _fields(url_b)
    except ShardexError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    added = [f"  + {name}: {b[name]}" for name in sorted(b.keys() - a.keys())]
    removed = [f"  - {name}: {a[name]}" for name in sorted(a.keys() - b.keys())]
    changed = [f"  ~ {name}: {a[name]} -> {b[name]}" for name in sorted(a.keys() & b.keys()) if a[name] != b[name]]
    for title, lines in (("Added:", added), ("Removed:", removed), ("Changed:", changed)):
        if lines:
            print(title, *lines, sep="\n")
    if not (added or removed or changed):
        print("Schemas are identical.")
    return int(bool(added or removed or changed))


def _fields(url: str) -> dict[str, str]:
    """Return the names and types of the values of the first sample."""
    named = url.startswith(("@", "at://"))
    first = (dataset_of_name(url, DictSample, None, None) if named else Dataset[DictSample](url)).head(1)
    return {name: type(value).__name__ for name, value in first[0].items()} if first else {}
