"""`Index`: datasets, schemas, lenses and labels by name, in a database of its own, in others, and on ATProto.

A name says where it is: ``name`` and ``@local/name`` in the database of the index, ``@lab/name`` in the repository
``lab`` that the index was given, ``@handle/name`` and ``at://...`` on ATProto (`_network`).
"""

import json
import os
import tempfile
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from shardex.compat.atdata._dataset import Dataset
from shardex.compat.atdata._exceptions import EntryNotFoundError, SchemaError
from shardex.compat.atdata._lens_codec import lens_from_record, lens_to_json
from shardex.compat.atdata._logging import get_logger, log_operation
from shardex.compat.atdata._protocols import AbstractDataStore, IndexEntry
from shardex.compat.atdata._schema_codec import _schema_to_type
from shardex.compat.atdata._stub_manager import StubManager, _extract_authority
from shardex.compat.atdata._write import write_samples
from shardex.compat.atdata.index._entry import LocalDatasetEntry
from shardex.compat.atdata.index._insertion import insert
from shardex.compat.atdata.index._namespace import SchemaNamespace
from shardex.compat.atdata.index._network import Network
from shardex.compat.atdata.index._schema import (
    LocalSchemaRecord,
    _build_schema_record,
    _increment_patch,
    _make_lens_ref,
    _make_schema_ref,
    _parse_lens_ref,
    _parse_schema_ref,
)
from shardex.compat.atdata.lens import Lens
from shardex.compat.atdata.providers import IndexProvider, create_provider
from shardex.compat.atdata.providers._base import Label
from shardex.compat.atdata.providers._redis import RedisProvider
from shardex.compat.atdata.repository import Repository
from shardex.compat.atdata.search import SearchResults, search_index
from shardex.compat.atdata.stores import LocalDiskStore
from shardex.errors import ArgumentError
from shardex.features import describe

_LAZY: Any = object()
_FIRST = "1.0.0"


class _Place(NamedTuple):
    """Where a name is: in a repository, or on ATProto (without one), there of the account `handle`."""

    repository: str | None
    name: str
    handle: str | None = None


class Index:
    """Datasets, schemas, lenses and labels by name.

    >>> import tempfile
    >>> from shardex.compat.atdata import packable
    >>> @packable
    ... class Point:
    ...     x: int
    >>> folder = tempfile.mkdtemp()
    >>> index = Index("sqlite", path=folder + "/index.db", data_store=LocalDiskStore(folder), atmosphere=None)
    >>> entry = index.write_samples([Point(1), Point(2)], name="points")
    >>> index.get_dataset("points").schema_ref
    'atdata://local/schema/Point@1.0.0'
    """

    def __init__(
        self,
        provider: IndexProvider | str | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        dsn: str | None = None,
        redis: Any = None,
        data_store: AbstractDataStore | None = None,
        repos: Mapping[str, Repository] | None = None,
        atmosphere: Any = _LAZY,
        auto_stubs: bool = False,
        stub_dir: str | os.PathLike[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """`provider` is a database or the name of one: ``"sqlite"`` (default), ``"redis"`` or ``"postgres"``.

        A client `redis`, or arguments for one, also mean Redis. Without `atmosphere` a session without account is
        used when a name is on ATProto; with ``None`` such names are errors.
        """
        given: Any = provider
        if not isinstance(given, IndexProvider | str | None):
            # Indexes of version 0.2 had the client of Redis as their first argument.
            if not hasattr(given, "hgetall"):
                raise ArgumentError(
                    f"provider must be an IndexProvider or backend name string, got {type(given).__name__}"
                )
            provider, redis = None, given
        if not isinstance(provider, IndexProvider):
            kind = provider or ("redis" if redis is not None or kwargs else "sqlite")
            provider = create_provider(kind, path=path, dsn=dsn, redis=redis, **kwargs)
        self._repos = {"local": Repository(provider, data_store), **_checked_repos(repos or {})}
        self._network = None if atmosphere is None else Network(None if atmosphere is _LAZY else atmosphere)
        self._stubs = StubManager(stub_dir) if auto_stubs or stub_dir is not None else None
        self._types = SchemaNamespace()

    # -- what it is made of -------------------------------------------------------------------------------------------

    @property
    def repos(self) -> dict[str, Repository]:
        """The repositories by name; ``local`` is that of the index."""
        return dict(self._repos)

    @property
    def atmosphere(self) -> Any:
        """The session of ATProto, `None` if the index has none."""
        return None if self._network is None else self._network.client

    @property
    def provider(self) -> IndexProvider:
        """The database."""
        return self._repos["local"].provider

    @property
    def _redis(self) -> Any:
        if not isinstance(self.provider, RedisProvider):
            raise AttributeError("Index._redis is only available with a Redis provider. Use index.provider instead.")
        return self.provider.redis

    @property
    def data_store(self) -> AbstractDataStore | None:
        """Where shards of new datasets are stored."""
        return self._repos["local"].data_store

    @property
    def stub_dir(self) -> Any:
        """The folder of stubs, `None` if the index writes none."""
        return None if self._stubs is None else self._stubs.stub_dir

    @property
    def types(self) -> SchemaNamespace:
        """The classes that `get_schema_type` returned, as attributes."""
        return self._types

    def _place(self, ref: str) -> _Place:
        """Return where a name is."""
        if ref.startswith("at://"):
            return _Place(None, ref)
        plain = ref.removeprefix("@").removeprefix("atdata://")
        first, slash, rest = plain.partition("/")
        if slash and first in self._repos:
            return _Place(first, rest.rpartition("/")[2] if ref.startswith("atdata://") else rest)
        if plain == ref:
            return _Place("local", ref)
        return _Place(None, rest.rpartition("/")[2] if ref.startswith("atdata://") else rest, first)

    def _on_network(self, ref: str) -> Network:
        if self._network is None:
            raise ArgumentError(f"Atmosphere backend required for {ref!r} but not available: Index(atmosphere=...)")
        return self._network

    def _repository(self, name: str) -> Repository:
        if name not in self._repos:
            raise EntryNotFoundError(f"Unknown repository {name!r}; expected one of {', '.join(self._repos)}")
        return self._repos[name]

    # -- datasets -----------------------------------------------------------------------------------------------------

    def insert_dataset(
        self,
        ds: Dataset[Any],
        *,
        name: str,
        schema_ref: str | None = None,
        description: str | None = None,
        tags: list[str] | None = None,
        license: str | None = None,
        data_store: AbstractDataStore | None = None,
        force: bool = False,
        copy: bool = False,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> IndexEntry:
        """Add a dataset under a name, and return its entry.

        With a store its samples are written there; without one its shards stay where they are, unless `copy` asks for
        copies in ``~/.atdata/data``. On ATProto local shards are uploaded as blobs, up to 1 GB unless `force`; `copy`
        does that for all shards.
        """
        place = self._place(name)
        about = {"description": description, "tags": tags, "license": license}
        if place.repository is None:
            options = {**about, "data_store": data_store, "force": force, "copy": copy, "metadata": metadata, **kwargs}
            return self._on_network(name).insert(ds, name=place.name, schema_ref=schema_ref, **options)
        found = {key: value for key, value in about.items() if value is not None}
        known = metadata if metadata is not None else ds._metadata
        known = {**(known or {}), **found} if found else known
        repository = self._repository(place.repository)
        store = data_store or repository.data_store or (LocalDiskStore() if copy else None)
        kwargs = {"prefix": place.name, "description": description, **kwargs}
        return insert(ds, place.name, repository.provider, store, schema_ref, known, **kwargs)

    def write_samples(
        self,
        samples: Iterable[Any],
        *,
        name: str,
        schema_ref: str | None = None,
        description: str | None = None,
        tags: list[str] | None = None,
        license: str | None = None,
        maxcount: int = 10_000,
        maxsize: int | None = None,
        metadata: dict[str, Any] | None = None,
        manifest: bool = False,
        data_store: AbstractDataStore | None = None,
        force: bool = False,
    ) -> IndexEntry:
        """Write samples to shards of a store, by default in ``~/.atdata/data``, and add them under a name."""
        place = self._place(name)
        store, options = data_store, dict[str, Any]()
        if place.repository is None:
            maxsize = self._on_network(name).most_bytes(maxsize, force)
        else:
            store = store or self._repository(place.repository).data_store or LocalDiskStore()
            given = {"maxcount": maxcount, "maxsize": maxsize, "manifest": manifest}
            options = {key: value for key, value in given.items() if value is not None}
        with log_operation("Index.write_samples", name=name), tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "data.tar")
            ds = write_samples(samples, path, maxcount=maxcount, maxsize=maxsize, manifest=manifest)
            return self.insert_dataset(
                ds,
                name=name,
                schema_ref=schema_ref,
                description=description,
                tags=tags,
                license=license,
                data_store=store,
                force=force,
                metadata=metadata,
                **options,
            )

    def write(self, samples: Iterable[Any], *, name: str, **kwargs: Any) -> IndexEntry:
        """Write samples and add them under a name: use `write_samples`."""
        _deprecated("write", "write_samples")
        return self.write_samples(samples, name=name, **kwargs)

    def get_dataset(self, ref: str) -> IndexEntry:
        """Return the dataset that a name means: by its newest label, or by its own name."""
        place = self._place(ref)
        if place.repository is None:
            return self._on_network(ref).get(place.name, place.handle)
        provider = self._repository(place.repository).provider
        try:
            return provider.get_entry_by_cid(provider.get_label(place.name)[0])
        except KeyError:
            return provider.get_entry_by_name(place.name)

    @property
    def datasets(self) -> Iterator[IndexEntry]:
        """The datasets of all repositories."""
        return (one for repo in self._repos.values() for one in repo.provider.iter_entries())

    def list_datasets(self, repo: str | None = None) -> list[IndexEntry]:
        """Return the datasets of all repositories, or of one; ``_atmosphere`` means your account on ATProto."""
        if repo == "_atmosphere":
            return [] if self._network is None else self._network.list_datasets()
        return list(self.datasets if repo is None else self._repository(repo).provider.iter_entries())

    def add_entry(
        self,
        ds: Dataset[Any],
        *,
        name: str,
        schema_ref: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> LocalDatasetEntry:
        """Add a dataset whose shards stay where they are: use `insert_dataset`."""
        _deprecated("add_entry", "insert_dataset")
        return insert(ds, name, self.provider, None, schema_ref, ds._metadata if metadata is None else metadata)

    def get_entry(self, cid: str) -> LocalDatasetEntry:
        """Return the dataset with an identifier."""
        return self.provider.get_entry_by_cid(cid)

    def get_entry_by_name(self, name: str) -> LocalDatasetEntry:
        """Return the dataset that was stored last under a name, whatever labels say."""
        return self.provider.get_entry_by_name(name)

    @property
    def entries(self) -> Iterator[LocalDatasetEntry]:
        """The datasets of the index itself."""
        return self.provider.iter_entries()

    def list_entries(self) -> list[LocalDatasetEntry]:
        """Return the datasets of the index itself."""
        return list(self.entries)

    @property
    def all_entries(self) -> list[LocalDatasetEntry]:
        """The datasets of the index itself."""
        return self.list_entries()

    # -- labels -------------------------------------------------------------------------------------------------------

    def label(self, name: str, cid: str, *, version: str | None = None, description: str | None = None) -> None:
        """Let a name, or a version of it, mean the dataset with an identifier."""
        place = self._place(name)
        provider = self._repository(place.repository or f"@{place.handle}").provider
        provider.store_label(place.name, cid, version, description)

    def get_label(self, name: str, version: str | None = None) -> IndexEntry:
        """Return the dataset that a label means; without `version` that of the newest label with this name."""
        place = self._place(name)
        if place.repository is None:
            return self._on_network(name).get(place.name, place.handle, version)
        provider = self._repository(place.repository).provider
        return provider.get_entry_by_cid(provider.get_label(place.name, version)[0])

    @property
    def labels(self) -> Iterator[Label]:
        """The name, the identifier of the dataset and the version of all labels."""
        return (one for repo in self._repos.values() for one in repo.provider.iter_labels())

    def list_labels(self, repo: str | None = None) -> list[Label]:
        """Return all labels, or those of one repository."""
        return list(self.labels if repo is None else self._repository(repo).provider.iter_labels())

    # -- schemas ------------------------------------------------------------------------------------------------------

    def publish_schema(self, sample_type: type, *, version: str | None = None, description: str | None = None) -> str:
        """Store the schema of a sample class, and return its address; without `version` it is the next one."""
        if not isinstance(sample_type, type) or not hasattr(sample_type, "from_data"):
            shown = getattr(sample_type, "__name__", describe(sample_type))
            raise ArgumentError(
                f"{shown} does not satisfy the Packable protocol. Use @packable decorator or inherit from "
                "PackableSample."
            )
        name = sample_type.__name__
        if version is None:
            latest = self.provider.find_latest_version(name)
            version = _FIRST if latest is None else _increment_patch(latest)
        record = _build_schema_record(sample_type, version=version, description=description)
        stored = self.provider.get_schema_json(name, version)
        if stored is not None and _record(stored, name).get("fields") != record["fields"]:
            get_logger().warning("publish_schema: %s@%s is replaced by one with other fields", name, version)
        self.provider.store_schema(name, version, json.dumps(record))
        return _make_schema_ref(name, version)

    def get_schema(self, ref: str) -> dict[str, Any]:
        """Return the record of a schema by its address."""
        if ref.startswith(("at://", "@")):
            return self._on_network(ref).get_schema(ref)
        name, version = _parse_schema_ref(ref)
        text = self.provider.get_schema_json(name, version)
        if text is None:
            raise EntryNotFoundError(f"Schema not found: {ref}")
        schema = {**_record(text, ref), "$ref": _make_schema_ref(name, version)}
        if self._stubs is not None:
            self._stubs.ensure_stub(schema)
        return schema

    def get_schema_record(self, ref: str) -> LocalSchemaRecord:
        """Return a schema by its address."""
        return LocalSchemaRecord.from_dict(self.get_schema(ref))

    def get_schema_type(self, ref: str, *, register: bool = True) -> type[Any]:
        """Return the sample class of a schema, which is made of its record; `register` adds it to `types`."""
        made = _schema_to_type(self.get_schema(ref))
        if register:
            self._types._register(made.__name__, made)
        return made

    @property
    def schemas(self) -> Iterator[LocalSchemaRecord]:
        """All schemas."""
        for name, version, text in self.provider.iter_schemas():
            ref = _make_schema_ref(name, version)
            yield LocalSchemaRecord.from_dict({**_record(text, ref), "$ref": ref})

    def list_schemas(self) -> list[dict[str, Any]]:
        """Return the records of all schemas."""
        return [one.to_dict() for one in self.schemas]

    def load_schema(self, ref: str) -> type[Any]:
        """Return the sample class of a schema: use `get_schema_type`."""
        _deprecated("load_schema", "get_schema_type")
        return self.get_schema_type(ref)

    def decode_schema(self, ref: str) -> type[Any]:
        """Return the sample class of a schema: use `get_schema_type`."""
        _deprecated("decode_schema", "get_schema_type")
        return self.get_schema_type(ref, register=False)

    def decode_schema_as(self, ref: str, type_hint: type[Any]) -> type[Any]:
        """Return the sample class of a schema as a known class: use `get_schema_type`."""
        _deprecated("decode_schema_as", "get_schema_type")
        return self.get_schema_type(ref, register=False)

    def get_import_path(self, ref: str) -> str | None:
        """Return the name of the module that `stub_dir` has for a schema, `None` if the index writes no stubs."""
        if self._stubs is None:
            return None
        name, version = _parse_schema_ref(ref)
        return f"{_extract_authority(self.get_schema(ref).get('$ref'))}.{name}_{version.replace('.', '_')}"

    def clear_stubs(self) -> int:
        """Remove the stubs, and return how many there were."""
        return 0 if self._stubs is None else self._stubs.clear_stubs()

    # -- lenses -------------------------------------------------------------------------------------------------------

    def store_lens(
        self,
        lens_obj: Lens[Any, Any],
        *,
        name: str,
        version: str | None = None,
        description: str | None = None,
        source_schema: str | None = None,
        view_schema: str | None = None,
    ) -> str:
        """Store what a lens does, field by field, or the names of its functions; return its address."""
        if version is None:
            latest = self.provider.find_latest_lens_version(name)
            version = _FIRST if latest is None else _increment_patch(latest)
        known = {"description": description, "source_schema": source_schema, "view_schema": view_schema}
        text = lens_to_json(lens_obj, name=name, version=version, **known)
        self.provider.store_lens(name, version, text)
        if self._stubs is not None:
            self._stubs.ensure_lens_stub(json.loads(text))
        return _make_lens_ref(name, version)

    def get_lens(self, ref: str) -> dict[str, Any]:
        """Return the record of a lens by its address."""
        name, version = _parse_lens_ref(ref)
        text = self.provider.get_lens_json(name, version)
        if text is None:
            raise EntryNotFoundError(f"Lens not found: {ref}")
        return {**_record(text, ref), "$ref": _make_lens_ref(name, version)}

    def load_lens(self, ref: str, *, source_type: Any = None, view_type: Any = None) -> Lens[Any, Any]:
        """Return the lens of a record between two sample types; code that it names is never imported."""
        return lens_from_record(self.get_lens(ref), source_type=source_type, view_type=view_type)

    @property
    def lenses(self) -> Iterator[dict[str, Any]]:
        """The records of all lenses."""
        return (self._lens(*one) for one in self.provider.iter_lenses())

    def list_lenses(self) -> list[dict[str, Any]]:
        """Return the records of all lenses."""
        return list(self.lenses)

    def find_lenses(self, source_schema: str, view_schema: str | None = None) -> list[dict[str, Any]]:
        """Return the records of the lenses from a schema, or from one to another."""
        return [self._lens(*one) for one in self.provider.find_lenses_by_schemas(source_schema, view_schema)]

    @staticmethod
    def _lens(name: str, version: str, text: str) -> dict[str, Any]:
        ref = _make_lens_ref(name, version)
        return {**_record(text, ref), "$ref": ref}

    # -- search and ATProto -------------------------------------------------------------------------------------------

    def search(
        self,
        text: str | None = None,
        tags: list[str] | None = None,
        schema_ref: str | None = None,
        repo: str | None = None,
        limit: int = 50,
        include_atmosphere: bool = True,
    ) -> SearchResults:
        """Return the datasets whose name has a text, with all of some tags, with a schema, in a repository."""
        return search_index(self, include_atmosphere, text, tags, schema_ref, repo, limit)

    def promote_entry(self, entry_name: str, **options: Any) -> str:
        """Publish a dataset of the index on ATProto (name=, description=, tags=, license=): use `insert_dataset`."""
        _deprecated("promote_entry", "insert_dataset")
        return self._on_network(entry_name).promote(self.get_entry_by_name(entry_name), self, **options)

    def promote_dataset(
        self,
        dataset: Dataset[Any],
        *,
        name: str,
        sample_type: type | None = None,
        schema_version: str = _FIRST,
        description: str | None = None,
        tags: list[str] | None = None,
        license: str | None = None,
    ) -> str:
        """Publish a dataset on ATProto, and return its address: use `insert_dataset`."""
        _deprecated("promote_dataset", "insert_dataset")
        options: dict[str, Any] = {"description": description, "tags": tags, "license": license}
        kind = sample_type or dataset.sample_type
        return self._on_network(name).promote_dataset(dataset, kind, schema_version, name=name, **options)


def _checked_repos(repos: Mapping[str, Repository]) -> Mapping[str, Repository]:
    if "local" in repos:
        raise ArgumentError('"local" is reserved for the built-in repository. Use a different name for your repository')
    for name, one in repos.items():
        if not isinstance(one, Repository):
            raise ArgumentError(f"repos[{name!r}] must be a Repository, got {type(one).__name__}")
    return repos


def _record(text: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise SchemaError(f"expected a record as a JSON object, got {text!r:.100} - at {where}")
    return found


def _deprecated(name: str, instead: str) -> None:
    warnings.warn(f"Index.{name}() is deprecated, use Index.{instead}() instead", DeprecationWarning, stacklevel=3)
