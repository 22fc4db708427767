"""Datasets by name: the default index, and the dataset that ``@local/name``, ``@handle/name`` or ``at://...`` means."""

import importlib
import threading
from typing import TYPE_CHECKING, Any

from shardex.compat.atdata._dataset import Dataset
from shardex.compat.atdata._sources import URLSource
from shardex.compat.atdata.stores import S3DataStore
from shardex.errors import ArgumentError
from shardex.files import expand_braces

if TYPE_CHECKING:
    from shardex.compat.atdata.index import Index

_default: list["Index"] = []
_making = threading.Lock()


def get_default_index() -> "Index":
    """Return the index of names without `index=`: that of `set_default_index`, or ``~/.atdata/index.db``."""
    with _making:
        if not _default:
            made: Any = importlib.import_module("shardex.compat.atdata.index")  # which may import this module
            _default.append(made.Index())
        return _default[0]


def set_default_index(index: "Index | None") -> None:
    """Set the index of names without `index=`; ``None`` means ``~/.atdata/index.db`` again."""
    with _making:
        _default[:] = [] if index is None else [index]


def dataset_of_name(path: str, sample_type: Any, index: Any, atmosphere: Any) -> Dataset[Any]:
    """Return the dataset of a name or an address."""
    if path.startswith("at://"):
        return _on_network(path, sample_type, atmosphere)
    handle, name, version = _parse_indexed_path(path)
    index = get_default_index() if index is None else index
    full = f"@{handle}/{name}"
    entry = index.get_dataset(full) if version is None else index.get_label(full, version)
    if str(getattr(entry, "uri", "")).startswith("at://"):
        return _on_network(entry.uri, sample_type, atmosphere or index.atmosphere)
    repository = getattr(index, "repos", {}).get(handle)
    typed: Any = Dataset
    kind = sample_type or index.get_schema_type(entry.schema_ref)
    store = repository.data_store if repository else getattr(index, "data_store", None)
    ds: Dataset[Any] = typed[kind](_source(entry.data_urls, store))
    return ds


def _source(urls: list[str], store: Any) -> Any:
    shards = [shard for one in urls for shard in expand_braces(one)]
    if isinstance(store, S3DataStore) and all(one.startswith("s3://") for one in shards):
        return store.source(shards)
    return URLSource.of([store.read_url(one) for one in shards] if store is not None else shards)


def _on_network(uri: str, sample_type: Any, client: Any) -> Dataset[Any]:
    """Return the dataset of a record on ATProto."""
    records: Any = importlib.import_module("shardex.compat.atdata.atmosphere.records")
    ds: Dataset[Any] = records.load_at_uri(uri, sample_type, client)
    return ds


def _parse_indexed_path(path: str) -> tuple[str, str, str | None]:
    """Return the repository or account, the name and the version in a name of a dataset.

    >>> _parse_indexed_path("@local/mnist"), _parse_indexed_path("@a.example/mnist@1.0.0")
    (('local', 'mnist', None), ('a.example', 'mnist', '1.0.0'))
    """
    handle, _, rest = path.removeprefix("@").partition("/")
    name, at, version = rest.partition("@")
    if not path.startswith("@") or not handle or not name or (at and not version):
        raise ArgumentError(f"Invalid indexed path format: {path}. Expected @local/name, @handle/name or with @version")
    return handle, name, version or None
