"""A program for the real mlcroissant: validates the metadata files that it is given, and prints problems and records.

It is run by `test_to_croissant`, never imported: mlcroissant brings packages that type checkers would use for ours.
"""

import json
import sys
from typing import Any

import mlcroissant  # type: ignore[import-not-found]


def plain(value: Any) -> Any:
    """Return a value as JSON has it; images as their size."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, list):
        return [plain(one) for one in value]
    if hasattr(value, "tolist"):
        return value.tolist()
    return value if isinstance(value, bool | int | float | str | None) else getattr(value, "size", str(value))


def seen(path: str) -> dict[str, Any]:
    """Return what mlcroissant has to say about a file, and the records of its record set."""
    dataset = mlcroissant.Dataset(jsonld=path)
    issues = dataset.metadata.issues
    return {
        "errors": list(issues.errors),
        "warnings": list(issues.warnings),
        "version": str(dataset.metadata.conforms_to),
        "records": [
            {name.partition("/")[2]: plain(value) for name, value in record.items()}
            for record in dataset.records("default")
        ],
    }


print(json.dumps([seen(path) for path in sys.argv[1:]]))
