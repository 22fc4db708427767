"""Records: what a catalog knows about one version of a dataset, schema or lens, as one JSON document of bounded size.

`Content` describes data so that it can be opened again; a `DatasetRecord` is a content under a name and a version. A
`SchemaRecord` and a `LensRecord` have semantic versions; the field `kind` tells them from datasets.
Records come from other people: `decode` checks each field and names a wrong one; fields that this version of shardex
does not know are kept. What a record may make the reader do is said in `addresses`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, TypeVar

import msgspec
from msgspec import Meta

from shardex.catalog.names import MOST_CHARACTERS, REFERENCE, VERSION, check_name
from shardex.errors import ArgumentError, FormatError
from shardex.features import Features

MOST_BYTES = 4 << 20
"""Size of a record: enough for ten thousand URLs, and small enough to read one from a stranger."""
S = TypeVar("S", bound=msgspec.Struct)
R = TypeVar("R", bound="CatalogRecord")
Line = Annotated[str, Meta(max_length=4000)]
Text = Annotated[str, Meta(max_length=100_000)]
Count = Annotated[int, Meta(ge=0, lt=1 << 62)]
Name = Annotated[str, Meta(max_length=MOST_CHARACTERS)]
Number = Annotated[int, Meta(ge=1, lt=100_000_000)]


class Content(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a dataset consists of, and how it was opened."""

    fingerprint: Annotated[str, Meta(min_length=1, max_length=200)]
    """The identity of the data: `Dataset.fingerprint`."""
    urls: Annotated[list[Line], Meta(min_length=1, max_length=10_000)]
    """The path, pattern or URL that was opened, or several files."""
    format: Line
    samples: Count
    options: dict[str, Any] = {}
    """Options of the format; a schema in its JSON form."""
    fields: Annotated[list[Line], Meta(max_length=100_000)] | None = None
    """The fields that a view has, in its order; None for all."""
    schema: dict[str, Any] = {}
    """The fields with their features, in the JSON form of `Features`."""
    bytes: Count | None = None
    shards: Count | None = None
    checksums: dict[Line, Line] = {}
    """Checksums of files by URL, such as ``sha256:...``, for other tools: the fingerprint is what `open` compares."""

    @property
    def what(self) -> str | list[str]:
        """The argument of `open`."""
        return self.urls[0] if len(self.urls) == 1 else self.urls

    @property
    def features(self) -> Features:
        """Name and feature of each field."""
        return Features.from_json(self.schema)

    @property
    def open_options(self) -> dict[str, Any]:
        """Options of `open`, with a schema as `Features`."""
        options = dict(self.options)
        return options | {"schema": Features.from_json(options["schema"])} if "schema" in options else options


class Parent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A dataset from which another one was made."""

    fingerprint: Line
    name: Line = ""
    version: Count | None = None

    def __str__(self) -> str:
        return f"{self.name}@{self.version}" if self.name else self.fingerprint


class CatalogRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a catalog stores, under a key and a number: one version of a dataset, a schema or a lens."""

    folder: ClassVar[str] = ""
    """Begin of the keys of a kind; the key of a dataset is its name."""
    counted: ClassVar[str] = "version"
    """The field with the number, which counts the versions of a name."""
    if TYPE_CHECKING:  # what all kinds have
        name: str
        version: Any
        description: str
        created: str

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def key(self) -> str:
        """The name under which backends store it."""
        return self.folder + self.name

    @property
    def number(self) -> int:
        """The number under which backends store it."""
        return int(self.version)

    def says_the_same(self, other: Any) -> bool:
        """Return True if only number and time differ."""
        return bool(self == msgspec.structs.replace(other, created=self.created, **{self.counted: self.number}))


class DatasetRecord(Content, CatalogRecord, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One version of a dataset in a catalog."""

    name: Name
    version: Number
    description: Text = ""
    tags: Annotated[list[Annotated[str, Meta(min_length=1, max_length=100)]], Meta(max_length=30)] = []
    """Words to search for. (A tag of a version, such as "stable", is no part of the record: it can be moved.)"""
    license: Line = ""
    parents: Annotated[list[Parent], Meta(max_length=1000)] = []
    created: Line = ""
    """Time of publication in UTC, for display."""
    trusted: bool = True
    """False for a record that was imported from elsewhere: what it may name is bounded also in a trusted catalog."""
    extra: dict[str, Any] = {}
    """Fields that this version of shardex does not know."""

    def reference(self) -> dict[str, Any]:
        """Return a small dict that `open` takes, and `Dataset.reference` returns for the same data."""
        return to_reference(self, self.name, self.version, trusted=self.trusted)


class ReleaseRecord(CatalogRecord, frozen=True, kw_only=True, omit_defaults=True, tag_field="kind", tag="release"):
    """What schemas and lenses have in common: a name, a semantic version, and which of its versions it is."""

    counted = "number"
    name: Name
    version: Annotated[str, Meta(pattern=f"^{VERSION}$")]
    number: Number
    description: Text = ""
    code: Annotated[dict[Annotated[str, Meta(max_length=100)], Line], Meta(max_length=20)] = {}
    """Where its source code is, such as repository, commit and path: shown, and never imported."""
    created: Line = ""
    extra: dict[str, Any] = {}
    """Fields that this version of shardex does not know."""


class SchemaRecord(ReleaseRecord, frozen=True, kw_only=True, omit_defaults=True, tag="schema"):
    """One version of a schema."""

    folder = "_schemas/"
    schema: dict[str, Any]
    """The fields with their features, in the JSON form of `Features`."""

    @property
    def features(self) -> Features:
        """Name and feature of each field."""
        return Features.from_json(self.schema)


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a lens takes a field of the view from: a field of the source, or a constant."""

    path: Annotated[tuple[Line, ...], Meta(max_length=64)] = ()
    """Name of a field of the source, and names in it for structs; none for a constant."""
    value: Any = None
    """A constant, as a JSON value."""

    def __str__(self) -> str:
        return ".".join(self.path) if self.path else f"the constant {self.value!r:.100}"


class LensRecord(ReleaseRecord, frozen=True, kw_only=True, omit_defaults=True, tag="lens"):
    """One version of a lens: which fields of one schema become which fields of another."""

    folder = "_lenses/"
    source: Line
    """Name and version of the schema of the samples that it takes."""
    view: Line
    """Name and version of the schema of the views."""
    fields: Annotated[dict[Line, Origin], Meta(max_length=100_000)] | None = None
    """Where each field of the view is taken from; None if the lens is code elsewhere."""


class Described(Protocol):
    """What `Catalog.put` takes: a dataset."""

    def content(self) -> Content:
        """Return how to open it again; raise an error if that cannot be described."""

    def reference(self) -> dict[str, Any]:
        """Return the same without the schema, and the name under which it is known."""


# -- JSON -----------------------------------------------------------------------------------------------------


def encode(record: CatalogRecord) -> bytes:
    """Return a record as JSON; raises ArgumentError if it has a value that `decode` would refuse."""
    data = msgspec.json.encode(to_plain(record))
    try:
        decode(data, "record")
    except FormatError as error:
        raise ArgumentError(f"{record}: {error}") from None
    return data


def to_plain(record: CatalogRecord) -> dict[str, Any]:
    """Return a record as JSON values; fields that are not known come first, so that they replace none."""
    plain = msgspec.to_builtins(record)
    return {**plain.pop("extra", {}), **plain}


def decode(data: Any, where: str) -> CatalogRecord:
    """Return the record of JSON bytes; `where` names it in errors.

    >>> text = b'{"name": "a", "version": 1, "fingerprint": "0", "urls": ["/a"], "format": "tar", "samples": "5"}'
    >>> decode(text, "catalog.db: a@1")
    Traceback (most recent call last):
    shardex.errors.FormatError: catalog.db: a@1: expected a record of a dataset, got: Expected `int`, got `str` - at ...
    """
    if len(data) > MOST_BYTES:
        raise FormatError(f"{where}: expected a record of at most {MOST_BYTES} bytes, got {len(data)}")
    with suppress(msgspec.MsgspecError, ValueError, RecursionError):  # it has fields that are not known, or wrong ones
        if not (record := _DECODER.decode(data)).extra:
            return _with_name(record, where)
    try:
        plain = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"{where}: expected a record of a catalog, got: {error}") from None
    kind = plain.get("kind")
    return from_plain(plain, where, _KINDS.get(kind, DatasetRecord) if isinstance(kind, str) else DatasetRecord)


def from_plain(plain: Mapping[str, Any], where: str, kind: type[R]) -> R:
    """Return the record of JSON values."""
    known = _KNOWN[kind]
    extra = {name: value for name, value in plain.items() if name not in known}
    record = _convert({name: value for name, value in plain.items() if name in known}, kind, where)
    return msgspec.structs.replace(_with_name(record, where), extra=extra)


def _with_name(record: R, where: str) -> R:
    """Return a record if its name is one."""
    try:
        check_name(record.name)
    except ArgumentError as error:
        raise FormatError(f"{where}: expected a record of a {_noun(type(record))}, got: {error}") from None
    return record


_DECODER = msgspec.json.Decoder(DatasetRecord)
_KINDS: Mapping[str, type[SchemaRecord | LensRecord]] = {"schema": SchemaRecord, "lens": LensRecord}
"""Classes of records that are no datasets, by their field `kind`."""
_KNOWN: Mapping[type[Any], frozenset[str]] = {
    DatasetRecord: frozenset(DatasetRecord.__struct_fields__) - {"extra"},
    **{kind: frozenset({*kind.__struct_fields__, "kind"}) - {"extra"} for kind in _KINDS.values()},
}


def _convert(plain: Mapping[str, Any], kind: type[S], where: str) -> S:
    try:
        return msgspec.convert(plain, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        text = str(error).replace("`$.", "field `")
        raise FormatError(f"{where}: expected a record of a {_noun(kind)}, got: {text}") from None


def _noun(kind: type[msgspec.Struct]) -> str:
    return str(kind.__struct_config__.tag or "dataset")


# -- references -----------------------------------------------------------------------------------------------

_REFERRED = ("fingerprint", "urls", "format", "options", "fields", "samples")


def to_reference(
    content: Content, name: str = "", version: int | None = None, *, trusted: bool = True
) -> dict[str, Any]:
    """Return a small dict of JSON values that opens the same data again; the name is for people."""
    known: dict[str, Any] = {"name": name, "version": version} if name else {}
    known |= {} if trusted else {"trusted": False}
    plain = msgspec.to_builtins(content)
    return {REFERENCE: 1, **known, **{field: plain[field] for field in _REFERRED if field in plain}}


def from_reference(reference: Mapping[str, Any]) -> tuple[Content, Parent]:
    """Return the content of a reference, and its name and version if it has some."""
    where = "reference"
    if reference[REFERENCE] != 1:
        raise FormatError(f"{where}: expected version 1, got {reference[REFERENCE]!r:.50}: made by a later shardex")
    content = _convert({field: reference[field] for field in _REFERRED if field in reference}, Content, where)
    named = {field: reference[field] for field in ("fingerprint", "name", "version") if field in reference}
    try:
        return content, msgspec.convert(named, Parent)
    except msgspec.ValidationError as error:
        raise FormatError(f"{where}: {error}") from None


# -- search ---------------------------------------------------------------------------------------------------


def words_in(text: str) -> list[str]:
    """Return the words of a text, in lower case.

    >>> words_in("ImageNet-1k, cleaned")
    ['imagenet', '1k', 'cleaned']
    """
    return re.findall(r"[^\W_]+", text.casefold())


@dataclass(frozen=True)
class RecordQuery:
    """What to search for: beginnings of words in name, description, tags and fields; tags; names of fields."""

    words: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str | None, tags: Sequence[str], fields: Sequence[str]) -> RecordQuery:
        """Return the query for these arguments of a user."""
        for name, given in (("tags", tags), ("fields", fields)):
            if isinstance(given, str):
                raise ArgumentError(f"expected {name} to be a list of texts, got {given!r}")
        if text is not None and text.strip() and not words_in(text):
            raise ArgumentError(f"expected words to search for, got {text!r:.200}")
        return cls(tuple(words_in(text or "")), tuple(tags), tuple(fields))

    def matches(self, record: DatasetRecord) -> bool:
        """Return True if a record has all that is searched for."""
        if not {*self.tags} <= {*record.tags} or not {*self.fields} <= record.schema.keys():
            return False
        found = [word for text in searched(record) for word in words_in(text)] if self.words else []
        return all(any(one.startswith(word) for one in found) for word in self.words)


def searched(record: DatasetRecord) -> Iterator[str]:
    """Yield the four texts of a record that are searched: name, description, tags, and names of fields."""
    yield record.name
    yield record.description
    yield " ".join(record.tags)
    yield " ".join(record.schema)
