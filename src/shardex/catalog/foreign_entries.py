"""Datasets that atdata registered, as records: those of its Redis keys, and those of records on ATProto.

Their names are any texts, and no name is theirs alone: here a name has the characters that names have, and entries with
one name are its versions, in the order of their times and then of their CIDs. They have no fingerprint: `UNKNOWN` and
the CID of the entry, which is that of the URLs and not of the data, stand for it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from shardex.catalog.names import MOST_CHARACTERS
from shardex.catalog.records import DatasetRecord, R, from_plain
from shardex.errors import FormatError

UNKNOWN = "unknown:"
"""Begin of the fingerprint of a record without a fingerprint of its data: `open` has nothing to compare."""


def name_of(text: str) -> str:
    """Return the name under which a dataset with any title is found.

    >>> name_of("My Training Data (v2)")
    'My-Training-Data-v2'
    """
    parts = [re.sub("[^A-Za-z0-9._-]+", "-", part).strip("-._")[:100] for part in text.split("/")]
    name = "/".join(part.removesuffix(".json") for part in parts if part)[:MOST_CHARACTERS].rstrip("/")
    return name or "unnamed"


def foreign_record(title: str, cid: str, urls: list[str], where: str, **known: Any) -> DatasetRecord:
    """Return the record of a dataset of tar files, with the values that are known and not empty."""
    plain = {"name": name_of(title), "version": 1, "fingerprint": UNKNOWN + cid, "urls": urls, "format": "tar"}
    more = {"title": title} if plain["name"] != title else {}
    told = {field: value for field, value in known.items() if value or value == 0}
    return from_plain({"samples": 0, **more, **told, **plain}, where, DatasetRecord)


def record_of_redis(entry: Mapping[bytes, bytes], where: str) -> DatasetRecord:
    """Return the record of a hash ``LocalDatasetEntry:CID``."""
    try:
        plain = {key.decode(): value for key, value in entry.items()}
        name, cid, schema = (plain.get(key, b"").decode() for key in ("name", "cid", "schema_ref"))
        urls = msgspec.msgpack.decode(plain["data_urls"], type=list[str])
        metadata = msgspec.msgpack.decode(plain["metadata"], type=dict[str, Any]) if plain.get("metadata") else {}
    except (KeyError, UnicodeDecodeError, msgspec.MsgspecError, RecursionError) as error:
        problem = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise FormatError(f"{where}: expected an entry of atdata with name and data_urls, got {problem}") from None
    return foreign_record(name, cid, urls, f"{where}: {name!r:.100}", schema_ref=schema, metadata=metadata)


def with_versions(records: Iterable[R]) -> dict[str, list[R]]:
    """Return records by name with the numbers 1, 2, 3, ...; names are sorted."""
    found = defaultdict[str, list[R]](list)
    for record in records:
        found[record.key].append(record)
    return {
        name: [
            msgspec.structs.replace(record, **{record.counted: number})
            for number, record in enumerate(sorted(found[name], key=_in_time), 1)
        ]
        for name in sorted(found)
    }


def _in_time(record: Any) -> tuple[str, str]:
    return record.created, record.fingerprint if isinstance(record, DatasetRecord) else record.version
