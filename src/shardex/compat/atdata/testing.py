"""Datasets and samples for tests."""

import dataclasses
import os
import secrets
import tempfile
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from shardex.compat.atdata._dataset import Dataset
from shardex.compat.atdata._samples import packable
from shardex.compat.atdata._type_utils import is_ndarray_type
from shardex.compat.atdata._write import write_samples
from shardex.compat.atdata.atmosphere._types import LEXICON_NAMESPACE
from shardex.compat.atdata.index import Index
from shardex.compat.atdata.providers._sqlite import SqliteProvider
from shardex.errors import SchemaError, UnknownKeyError
from shardex.features import kinds

__all__ = ["MockAtmosphere", "MockAtmosphereClient", "make_dataset", "make_samples", "mock_index"]

ST = TypeVar("ST")
_INSTEAD = "make_dataset(folder, samples)"


def make_dataset(
    path: str | os.PathLike[str], samples: Sequence[Any], *, name: str = "test", sample_type: type | None = None
) -> Dataset[Any]:
    """Write samples to the tar ``{name}-000000.tar`` in a folder, and return them as a dataset."""
    written = write_samples(samples, os.path.join(path, f"{name}-000000.tar"))
    return written if sample_type is None else Dataset[sample_type](written.source)  # type: ignore[valid-type]


def make_samples(sample_type: type[ST], n: int = 10, seed: int | None = None) -> list[ST]:
    """Return samples of a class with values made up from the types of its fields; a seed gives the same ones again.

    Text is the name of the field and a number, whole numbers count, booleans alternate; floats, bytes and arrays
    (always float32 of shape (4, 4)) are random; lists have three texts; optional fields with a default keep it.
    """
    if not dataclasses.is_dataclass(sample_type):
        raise SchemaError(f"expected a class made by @packable, got {sample_type!r}")
    rng, hints = np.random.default_rng(seed), kinds.hints_of(sample_type)
    fields = [one for one in dataclasses.fields(sample_type) if not _keeps_default(one, hints[one.name])]
    return [
        sample_type(**{one.name: _value(one.name, hints[one.name], number, rng) for one in fields})
        for number in range(n)
    ]


def _keeps_default(field: "dataclasses.Field[Any]", hint: Any) -> bool:
    given = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
    return given and type(None) in typing.get_args(hint)


def _value(name: str, hint: Any, number: int, rng: np.random.Generator) -> Any:
    plain = hint.__origin__ if hasattr(hint, "__metadata__") else hint
    several = [one for one in typing.get_args(plain) if one is not type(None)]
    is_union = typing.get_origin(plain) in (typing.Union, types.UnionType)
    kind = several[0] if is_union and len(several) == 1 else plain
    if is_ndarray_type(kind):
        return rng.standard_normal((4, 4)).astype(np.float32)
    if "list" in str(kind):
        return [f"{name}_{number}_{k}" for k in range(3)]
    made: dict[Any, Callable[[], Any]] = {
        int: lambda: number,
        float: lambda: float(rng.random()),
        bool: lambda: number % 2 == 0,
        bytes: lambda: rng.bytes(16),
        dict: dict,
    }
    return made[kind]() if kind in made else f"{name}_{number}"


class MockAtmosphere:
    """An account of ATProto in memory, with a part of the methods of `Atmosphere`.

    >>> client = MockAtmosphere(); session = client.login("alice.test", "secret"); client.did
    'did:plc:mock000000000000'
    >>> uri = client.create_record("org.example.thing", {"n": 1}); client.get_record(uri)
    {'n': 1}
    """

    has_appview = False

    def __init__(self, did: str = "did:plc:mock000000000000", handle: str = "test.mock.social") -> None:
        self.did, self.handle = did, handle
        self.is_authenticated = False
        self._records: dict[str, dict[str, Any]] = {}
        self._blobs: dict[str, bytes] = {}
        self._call_log: list[tuple[str, dict[str, Any]]] = []

    def login(self, handle: str, password: str) -> dict[str, Any]:
        """Log in; every password is right."""
        self.is_authenticated, self.handle = True, handle
        self._call_log.append(("login", {"handle": handle}))
        return {"did": self.did, "handle": handle}

    def _ensure_authenticated(self) -> None:
        """Do nothing: writing needs no login here."""

    def export_session_string(self) -> str:
        """Return a session as text."""
        return "mock-session-string"

    def resolve_did(self, handle_or_did: str) -> str:
        """Return a DID as it is, and this account's DID for every handle."""
        return handle_or_did if handle_or_did.startswith("did:") else self.did

    def create_record(
        self, collection: str, record: dict[str, Any], rkey: str | None = None, validate: bool = False
    ) -> str:
        """Keep a record, and return its address."""
        key = rkey or secrets.token_hex(6)
        uri = f"at://{self.did}/{collection}/{key}"
        self._records[uri] = record
        self._call_log.append(("create_record", {"collection": collection, "rkey": key, "uri": uri}))
        return uri

    def get_record(self, uri: Any) -> dict[str, Any]:
        """Return a record; `KeyError` if there is none."""
        if str(uri) not in self._records:
            raise UnknownKeyError(f"Record not found: {uri}")
        return self._records[str(uri)]

    def list_records(
        self, collection: str, *, repo: str | None = None, limit: int = 100, cursor: str | None = None
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Return the records of a collection, and no cursor."""
        return [record for uri, record in self._records.items() if f"/{collection}/" in uri][:limit], None

    def list_schemas(self, repo: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Return the schemas."""
        return self.list_records(f"{LEXICON_NAMESPACE}.schema", limit=limit)[0]

    def list_datasets(self, repo: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Return the datasets."""
        return self.list_records(f"{LEXICON_NAMESPACE}.entry", limit=limit)[0]

    def list_labels(self, repo: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Return the labels."""
        return self.list_records(f"{LEXICON_NAMESPACE}.label", limit=limit)[0]

    def list_lenses(self, repo: str | None = None, limit: int = 100) -> list[dict[str, Any]]:
        """Return the lenses."""
        return self.list_records(f"{LEXICON_NAMESPACE}.lens", limit=limit)[0]

    def delete_record(self, uri: Any) -> None:
        """Forget a record."""
        self._records.pop(str(uri), None)

    def upload_blob(self, data: bytes, mime_type: str = "application/octet-stream") -> dict[str, Any]:
        """Keep a blob, and return its reference."""
        ref = f"blob:{secrets.token_hex(8)}"
        self._blobs[ref] = data
        self._call_log.append(("upload_blob", {"ref": ref, "size": len(data)}))
        return {"$type": "blob", "ref": {"$link": ref}, "mimeType": mime_type, "size": len(data)}

    def get_blob(self, did: str, cid: str) -> bytes:
        """Return a blob; `KeyError` if there is none."""
        if cid not in self._blobs:
            raise UnknownKeyError(f"Blob not found: {cid}")
        return self._blobs[cid]

    def reset(self) -> None:
        """Forget everything."""
        self._records.clear()
        self._blobs.clear()
        self._call_log.clear()
        self.is_authenticated = False


MockAtmosphereClient = MockAtmosphere

with suppress(ImportError):
    import pytest

    @pytest.fixture
    def mock_atmosphere() -> Iterator[MockAtmosphere]:
        """An account in memory, logged in, for tests that import this fixture."""
        client = MockAtmosphere()
        client.login("test.mock.social", "test-password")
        yield client
        client.reset()

    @pytest.fixture
    def tmp_dataset(tmp_path: Path) -> Dataset[Any]:
        """Ten samples with a `name` and a `value` in a temporary folder, for tests that import this fixture."""

        @packable
        class Sample:
            name: str
            value: int

        return make_dataset(tmp_path, [Sample(f"s{k}", k) for k in range(10)])

    @pytest.fixture
    def tmp_index(tmp_path: Path) -> Index:
        """An index in a temporary folder, for tests that import this fixture."""
        return mock_index(tmp_path)


def mock_index(path: Path | None = None, **kwargs: Any) -> Index:
    """Return an index in a file ``test_index.db`` of a folder, by default a temporary one, without ATProto."""
    folder = Path(tempfile.mkdtemp()) if path is None else Path(path)
    return Index(SqliteProvider(folder / "test_index.db"), atmosphere=None, **kwargs)
