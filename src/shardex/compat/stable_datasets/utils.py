"""`BaseDatasetBuilder`, which makes the splits of a dataset once and then opens them; downloads of raw files."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from shardex.compat.stable_datasets._ts_files import load_from_tsfile_to_dataframe
from shardex.compat.stable_datasets.cache import cache_fingerprint, open_cache, read_lineage, write_sharded_arrow_cache
from shardex.compat.stable_datasets.dataset import StableDataset, StableDatasetDict
from shardex.compat.stable_datasets.schema import (
    BuilderConfig,
    DatasetInfo,
    DatasetSource,
    DownloadInfo,
    Features,
    Version,
    Video,
)
from shardex.compat.stable_datasets.splits import Split, SplitGenerator
from shardex.errors import (
    ArgumentError,
    CacheChangedError,
    ChecksumError,
    FormatError,
    NotFoundError,
    RemoteReadError,
    SourceError,
    UnknownSplitError,
    storage_errors,
)
from shardex.progress import Bar
from shardex.sources import download_file, locks, make_folder

__all__ = [
    "CACHE_DIR_ENV_VAR",
    "DEFAULT_CACHE_DIR",
    "BaseDatasetBuilder",
    "DownloadError",
    "bulk_download",
    "download",
    "load_from_tsfile_to_dataframe",
]

DEFAULT_CACHE_DIR = "~/.stable-datasets/"
CACHE_DIR_ENV_VAR = "STABLE_DATASETS_CACHE_DIR"
_STORAGE_FORMATS = ("arrow", "lance")
_SPLIT_OF_ASSET = {"train": Split.TRAIN, "test": Split.TEST, "val": Split.VALIDATION}
_MOST_DOWNLOADS = 8
_ENCODE_WORKERS = 4
_log = logging.getLogger("shardex")

AnyPath = str | os.PathLike[str]


class DownloadError(RemoteReadError, RuntimeError):
    """A file that none of its URLs gives."""


def _default_folder(name: str) -> Path:
    return Path(os.environ.get(CACHE_DIR_ENV_VAR, DEFAULT_CACHE_DIR)).expanduser() / name


class BaseDatasetBuilder:
    """Base class of datasets. ``Cls(split="train")`` returns a `StableDataset`, ``Cls()`` all splits by name.

    A subclass has `VERSION`, `SOURCE` (or overrides `_source`), `_info` and `_generate_examples`, which yields pairs of
    a key and an example; `_split_generators` if there is not one file to download for each split.

    The examples of a split are made once and stored in `processed_cache_dir`; they are made again if the features have
    changed, or the files are damaged. One process makes them, others wait for it. ``decode_video=`` gives the options
    of `StableDataset.set_video_decode`.
    """

    VERSION: ClassVar[Version]
    SOURCE: ClassVar[DatasetSource | Mapping[str, Any]]
    BUILDER_CONFIGS: ClassVar[list[Any]] = []
    DEFAULT_CONFIG_NAME: ClassVar[str | None] = None
    STORAGE_FORMAT: ClassVar[str] = "arrow"

    config: Any
    _dataset_info: DatasetInfo
    _processed_cache_dir: Path
    _raw_download_dir: Path
    _backend_kwargs: dict[str, Any]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if getattr(cls, "_SKIP_SOURCE_VALIDATION", False):
            return
        if not isinstance(getattr(cls, "VERSION", None), Version):
            raise ArgumentError(f"expected {cls.__name__}.VERSION to be a Version, such as Version('1.0.0')")
        if "_source" in vars(cls):
            cls._source = _checked_source(cls._source)  # type: ignore[method-assign,assignment]
        elif cls._source is BaseDatasetBuilder._source and not hasattr(cls, "SOURCE"):
            raise ArgumentError(f"expected {cls.__name__} to have a SOURCE, or a method _source")
        if "SOURCE" in vars(cls):
            cls.SOURCE = _as_source(cls.SOURCE)

    def __new__(
        cls,
        *args: Any,
        split: str | None = None,
        processed_cache_dir: AnyPath | None = None,
        download_dir: AnyPath | None = None,
        storage_format: str | None = None,
        backend_kwargs: Mapping[str, Any] | None = None,
        decode_video: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Return one split of the dataset, or all of them; they are made if they are not there."""
        _check_storage_format(cls.STORAGE_FORMAT if storage_format is None else storage_format)
        made = object.__new__(cls)
        made._processed_cache_dir = Path(processed_cache_dir or _default_folder("processed"))
        made._raw_download_dir = Path(download_dir or _default_folder("downloads"))
        made._backend_kwargs = dict(backend_kwargs or {})
        made.__init__(*args, **kwargs)  # type: ignore[misc]
        made._source()  # raises an error if it is wrong, even if nothing is to be downloaded
        splits = made._load(split)
        result: Any = splits[split] if split is not None else StableDatasetDict(splits)
        if decode_video is not None:
            result = result.set_video_decode(decode_video)
        result._stable_datasets_processed_cache_dir = made._processed_cache_dir
        result._stable_datasets_download_dir = made._raw_download_dir
        return result

    def __init__(self, config_name: str | None = None, **kwargs: Any) -> None:
        """Choose the variant of the dataset; subclasses may take more arguments."""
        if self.BUILDER_CONFIGS:
            wanted = config_name or self.DEFAULT_CONFIG_NAME or self.BUILDER_CONFIGS[0].name
            found = [one for one in self.BUILDER_CONFIGS if one.name == wanted]
            if not found:
                known = ", ".join(repr(one.name) for one in self.BUILDER_CONFIGS)
                raise ArgumentError(f"expected one of the configs {known}, got {wanted!r}")
            self.config = found[0]
        else:
            self.config = BuilderConfig(name=config_name or "default")
        self._dataset_info = self._info()
        self._dataset_info.config_name = self.config.name

    @property
    def info(self) -> DatasetInfo:
        """What `_info` has returned."""
        return self._dataset_info

    # -- what subclasses define -----------------------------------------------------------------------------------

    def _info(self) -> DatasetInfo:
        """Return the features of the dataset, and its description."""
        raise NotImplementedError(f"{type(self).__name__} has no method _info")

    def _generate_examples(self, *args: Any, **kwargs: Any) -> Iterable[tuple[Any, Mapping[str, Any]]]:
        """Yield pairs of a key and an example; the keywords are those of the split's `SplitGenerator`."""
        raise NotImplementedError(f"{type(self).__name__} has no method _generate_examples")

    def _source(self) -> DatasetSource:
        """Return where the raw data comes from; override it if that depends on `self.config`."""
        if not hasattr(type(self), "SOURCE"):
            raise ArgumentError(f"expected {type(self).__name__} to have a SOURCE, or a method _source")
        return _as_source(type(self).SOURCE)

    def _split_generators(self) -> list[SplitGenerator]:
        """Download the file of each split, and return the splits with the keywords ``data_path`` and ``split``."""
        source = self._source()
        if not source.assets:
            raise ArgumentError(f"expected {type(self).__name__} to have an asset for each split, got none")
        checksums = source.checksums or {}
        infos = {
            name: replace(one, checksum=one.checksum or checksums.get(name)) for name, one in source.assets.items()
        }
        unique = {_identity(one): one for one in infos.values()}
        paths = dict(zip(unique, bulk_download(unique.values(), self._raw_download_dir), strict=True))
        return [
            SplitGenerator(_split_name(name), {"data_path": paths[_identity(one)], "split": name})
            for name, one in infos.items()
        ]

    def _candidate_splits(self) -> list[str]:
        """Return the names of splits that may be there before anything is downloaded."""
        return [_split_name(name) for name in self._source().assets]

    # -- caches ---------------------------------------------------------------------------------------------------

    def _load(self, split: str | None) -> dict[str, StableDataset]:
        """Return the wanted splits; those that are not there are made."""
        wanted = self._known_splits() if split is None else [split]
        found = {name: ds for name in wanted if (ds := self._open(name)) is not None}
        if wanted and len(found) == len(wanted):
            return found
        if any(isinstance(one, Video) and one.storage == "frames" for one in self.info.features.values()):
            raise ArgumentError(
                "expected Video(storage='path') or 'bytes', got 'frames', which needs Lance files; decode_video= "
                "decodes frames when samples are read"
            )
        generators = {one.name: one for one in self._split_generators()}
        if split is not None and split not in generators:
            raise UnknownSplitError(f"expected one of the splits {', '.join(map(repr, generators))}, got {split!r}")
        names = list(generators)
        return {name: self._open(name) or self._build(generators[name], names) for name in _wanted_of(split, names)}

    def _folders(self, split: str) -> list[Path]:
        """Return the folders where a split may be: that of this version, and that of early ones."""
        key = type(self).__name__, str(self.VERSION), self.config.name, split
        names = cache_fingerprint(*key, storage_format="arrow"), cache_fingerprint(*key)
        return [self._processed_cache_dir / name for name in names]

    def _known_splits(self) -> list[str]:
        """Return the splits of this dataset as the cache of one of them lists them, else the likely ones."""
        likely = self._candidate_splits()
        for name in likely:
            for folder in self._folders(name):
                with suppress(NotFoundError, FormatError):
                    if isinstance(listed := read_lineage(folder).get("splits"), list):
                        return [str(one) for one in listed]
        return likely

    def _open(self, split: str, warn: bool = False) -> StableDataset | None:
        """Return a split if it is there with these features; None if it must be made: `warn` logs why."""
        for folder in self._folders(split):
            try:
                opened = open_cache(folder, self._features, backend_kwargs=self._backend_kwargs)
            except NotFoundError:
                continue
            except (CacheChangedError, FormatError) as error:
                if warn:
                    _log.warning("%s is made again: %s", folder, error)
                continue
            return StableDataset(self._features, self.info, backend=opened.backend, num_rows=opened.num_rows)
        return None

    @property
    def _features(self) -> Features:
        return self.info.features

    def _build(self, generator: SplitGenerator, splits: list[str]) -> StableDataset:
        """Make the examples of a split, unless another process has made them in the meantime."""
        folder = self._folders(generator.name)[0]
        with storage_errors(str(folder), "create"):
            make_folder(os.path.abspath(folder.parent))
        with locks.locked_file(f"{folder}.build.lock"):
            if (found := self._open(generator.name, warn=True)) is not None:
                return found
            write_sharded_arrow_cache(
                self._generate_examples(**generator.gen_kwargs),
                self._features,
                folder,
                num_encode_workers=min(_ENCODE_WORKERS, os.cpu_count() or 1),
                lineage={"splits": splits},
            )
        opened = open_cache(folder, self._features, backend_kwargs=self._backend_kwargs)
        return StableDataset(self._features, self.info, backend=opened.backend, num_rows=opened.num_rows)


def _wanted_of(split: str | None, names: list[str]) -> list[str]:
    """Return the one split that was asked for, or all of them."""
    return names if split is None else [split]


def _check_storage_format(given: str) -> None:
    if given not in _STORAGE_FORMATS:
        raise ArgumentError(f"expected storage_format to be 'arrow', got {given!r}")
    if given == "lance":
        raise NotImplementedError("shardex does not write Lance files: use storage_format='arrow'")


def _split_name(asset: str) -> str:
    return _SPLIT_OF_ASSET.get(asset, asset)


def _as_source(source: Any) -> DatasetSource:
    if isinstance(source, DatasetSource):
        return source
    if not isinstance(source, Mapping):
        raise ArgumentError(f"expected SOURCE to be a DatasetSource or a mapping, got {source!r}")
    missing = [name for name in ("homepage", "assets", "citation") if source.get(name) is None]
    if missing:
        raise ArgumentError(f"expected SOURCE to have homepage, assets and citation, got none of {', '.join(missing)}")
    required = source["homepage"], source["assets"], source["citation"]
    return DatasetSource(*required, source.get("license") or "", source.get("checksums"))


def _checked_source(method: Callable[[Any], Any]) -> Callable[[Any], DatasetSource]:
    @wraps(method)
    def checked(self: Any) -> DatasetSource:
        return _as_source(method(self))

    return checked


# -- downloads ----------------------------------------------------------------------------------------------------


def _identity(info: DownloadInfo) -> tuple[Any, ...]:
    return info.url, tuple(info.fallbacks), info.checksum, info.filename


def _as_info(given: Any) -> DownloadInfo:
    if isinstance(given, DownloadInfo):
        return given
    if isinstance(given, str):
        return DownloadInfo(given)
    raise ArgumentError(f"expected a URL or DownloadInfo, got {given!r}")


def download(
    url: str | DownloadInfo,
    dest_folder: AnyPath | None = None,
    progress_bar: bool = True,
    _progress_dict: MutableMapping[Any, Any] | None = None,
    _task_id: Any = None,
    checksum: str | None = None,
    fallbacks: list[str] | None = None,
    filename: str | None = None,
    cache_key_url: str | None = None,
) -> Path:
    """Download a file into a folder and return its path; a file that is there is not downloaded again.

    One that is there with another checksum is. An interrupted download goes on. The name of the file has part of the
    hash of its URL: ``train.0275d128da.zip``. `checksum` is an algorithm and hex digits, ``"sha256:0a1b..."``;
    `fallbacks` are URLs that are tried after `url`.

    :raises ValueError: if the file is not the one that the checksum says
    :raises RuntimeError: if no URL gives the file
    """
    info = _as_info(url)
    info = replace(
        info,
        checksum=checksum or info.checksum,
        fallbacks=list(info.fallbacks if fallbacks is None else fallbacks),
        filename=filename or info.filename,
    )
    path = Path(dest_folder or _default_folder("downloads")) / _file_name(info, cache_key_url or info.url)
    options = {"desc": path.name, "unit": "B", "unit_scale": True, "unit_divisor": 1024, "disable": not progress_bar}
    with Bar(**options) as bar:

        def advance(done: int, size: int) -> None:
            bar.total = size
            bar.update(done - bar.n)
            if _progress_dict is not None:
                _progress_dict[_task_id] = {"progress": done, "total": size}

        try:
            download_file(info.all_urls(), path, checksum=info.checksum, advance=advance)
        except ChecksumError:
            raise
        except SourceError as error:
            raise DownloadError(str(error)) from error
    return path


def _file_name(info: DownloadInfo, url: str) -> str:
    given = info.filename or unquote(os.path.basename(urlsplit(url).path))
    stem, extension = os.path.splitext(os.path.basename(given))
    return f"{stem}.{hashlib.sha256(url.encode()).hexdigest()[:10]}{extension}"


def bulk_download(
    urls: Iterable[str | DownloadInfo], dest_folder: AnyPath, checksums: Mapping[str, str] | None = None
) -> list[Path]:
    """Download several files at the same time and return their paths in the order of the URLs.

    `checksums` has those of URLs that are given as text.
    """
    infos = list(_with_checksums(urls, checksums or {}))
    if not infos:
        return []
    with ThreadPoolExecutor(min(len(infos), _MOST_DOWNLOADS), thread_name_prefix="shardex-download") as threads:
        return list(threads.map(lambda info: download(info, dest_folder, progress_bar=False), infos))


def _with_checksums(urls: Iterable[str | DownloadInfo], checksums: Mapping[str, str]) -> Iterator[DownloadInfo]:
    for one in urls:
        info = _as_info(one)
        yield replace(info, checksum=info.checksum or checksums.get(info.url))
