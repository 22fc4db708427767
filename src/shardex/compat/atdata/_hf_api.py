"""`load_dataset` and `DatasetDict`: datasets by path, with splits by the names of the files."""

import errno
import glob
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Generic, TypeVar, overload

from shardex.compat.atdata._dataset import Dataset
from shardex.compat.atdata._logging import get_logger
from shardex.compat.atdata._named import dataset_of_name, get_default_index, set_default_index
from shardex.compat.atdata._samples import DictSample
from shardex.compat.atdata._sources import URLSource, without_file
from shardex.errors import NotFoundError, UnknownSplitError
from shardex.files import expand_braces, find
from shardex.sources import is_url

__all__ = ["DatasetDict", "get_default_index", "load_dataset", "set_default_index"]

ST = TypeVar("ST")
DataFiles = str | Sequence[str] | Mapping[str, str | Sequence[str]]

_OF_ONE_SPLIT: Final = ("ordered", "shuffled", "as_type", "list_shards", "head")
_WORDS: Final = {
    "train|training": "train",
    "test|testing": "test",
    "val|valid|validation": "validation",
    "dev|development": "validation",
}
_PLACES: Final = (r"[_-]({})[_-]", r"^({})[_-]", r"[/\\]({})[/\\]", r"^({})[/\\]")
_SPLITS: Final = [(re.compile(place.format(words)), name) for place in _PLACES for words, name in _WORDS.items()]
"""Where words for splits are looked for in a path; narrower than in `shardex.load_dataset`, as in atdata."""


class DatasetDict(Generic[ST], dict[str, Dataset[ST]]):
    """Datasets by the name of their split; with one split it has the methods of its dataset that read samples."""

    def __init__(
        self,
        splits: Mapping[str, Dataset[ST]] | None = None,
        sample_type: type[ST] | None = None,
        streaming: bool = False,
    ) -> None:
        super().__init__(splits or {})
        self._sample_type = sample_type
        self._streaming = streaming

    @property
    def sample_type(self) -> type[ST] | None:
        """The type of the samples."""
        if self._sample_type is None and self:
            return next(iter(self.values())).sample_type
        return self._sample_type

    @property
    def streaming(self) -> bool:
        """What `load_dataset` was given; all datasets read samples when they are needed."""
        return self._streaming

    @property
    def num_shards(self) -> dict[str, int]:
        """The number of shards of each split."""
        return {name: len(one.list_shards()) for name, one in self.items()}

    def __getattr__(self, name: str) -> Any:
        if name not in _OF_ONE_SPLIT:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        if len(self) != 1:
            found = ", ".join(map(repr, self)) or "none"
            raise AttributeError(f"expected one split for {name!r}, got {found}: choose one, splits['train'].{name}")
        return getattr(next(iter(self.values())), name)


@overload
def load_dataset(
    path: str,
    sample_type: type[ST],
    *,
    split: str,
    data_files: DataFiles | None = None,
    streaming: bool = False,
    index: Any = None,
    atmosphere: Any = None,
) -> Dataset[ST]: ...
@overload
def load_dataset(
    path: str,
    sample_type: type[ST],
    *,
    split: None = None,
    data_files: DataFiles | None = None,
    streaming: bool = False,
    index: Any = None,
    atmosphere: Any = None,
) -> DatasetDict[ST]: ...
@overload
def load_dataset(
    path: str,
    sample_type: None = None,
    *,
    split: str,
    data_files: DataFiles | None = None,
    streaming: bool = False,
    index: Any = None,
    atmosphere: Any = None,
) -> Dataset[DictSample]: ...
@overload
def load_dataset(
    path: str,
    sample_type: None = None,
    *,
    split: None = None,
    data_files: DataFiles | None = None,
    streaming: bool = False,
    index: Any = None,
    atmosphere: Any = None,
) -> DatasetDict[DictSample]: ...
def load_dataset(
    path: str,
    sample_type: Any = None,
    *,
    split: str | None = None,
    data_files: DataFiles | None = None,
    streaming: bool = False,
    index: Any = None,
    atmosphere: Any = None,
) -> Dataset[Any] | DatasetDict[Any]:
    """Return the dataset of a split, or all splits: of a folder of tars, a file, a pattern or a URL.

    Without a sample type samples are `DictSample`. Splits are words in the names of shards: ``train``, ``test``,
    ``val`` and so on, before, after or between ``-`` or ``_``, or names of folders; shards without one are ``train``.
    The shards of a folder are also those in the folders below it.
    `data_files` has the files of ``train``, or of each split in a dict, relative to `path`.

    ``@local/name`` is a dataset of `index`, by default of `get_default_index`, ``@local/name@1.0.0`` a version of its
    label; ``@handle/name`` and ``at://...`` are datasets on ATProto, read by the session `atmosphere`. They have one
    split, ``train``, and samples of the class that their schema says.
    """
    text = without_file(os.fspath(path))
    get_logger().info("load_dataset: path=%s, split=%s, sample_type=%s", text, split, sample_type)
    if text.startswith(("at://", "@")):
        named = dataset_of_name(text, sample_type, index, atmosphere)
        return _of_split({"train": named}, named.sample_type, split, streaming, text)
    kind: Any = DictSample if sample_type is None else sample_type
    found = _by_split(text) if data_files is None else _by_data_files(text, data_files)
    if not any(is_url(one) or os.path.exists(one) for shards in found.values() for one in shards):
        raise NotFoundError(errno.ENOENT, "expected tar shards, got none", text)
    typed: Any = Dataset
    datasets: dict[str, Dataset[Any]] = {name: typed[kind](URLSource.of(shards)) for name, shards in found.items()}
    return _of_split(datasets, kind, split, streaming, text)


def _of_split(
    datasets: dict[str, Dataset[Any]], kind: Any, split: str | None, streaming: bool, where: str
) -> Dataset[Any] | DatasetDict[Any]:
    """Return the dataset of a split, or all of them."""
    if split is None:
        return DatasetDict(datasets, kind, streaming)
    if split not in datasets:
        raise UnknownSplitError(f"expected one of the splits {', '.join(datasets)}, got {split!r} - at {where}")
    return datasets[split]


def _by_split(path: str) -> dict[str, list[str]]:
    """Return the shards at a path by the split that they name."""
    found: dict[str, list[str]] = {}
    is_folder = not is_url(path) and os.path.isdir(path)
    for shard in _shards_below(path) if is_folder else _shards_at(path):
        below = os.path.relpath(shard, path) if is_folder else shard
        found.setdefault(_split_of(below) or _split_of(shard) or "train", []).append(shard)
    return found


def _by_data_files(path: str, data_files: DataFiles) -> dict[str, list[str]]:
    """Return the shards of each split that is given; patterns are relative to a path."""
    given = data_files if isinstance(data_files, Mapping) else {"train": data_files}
    found = {}
    for name, files in given.items():
        patterns = [os.fspath(one) for one in ([files] if isinstance(files, str | os.PathLike) else files)]
        found[name] = [shard for one in patterns for shard in _shards_at(_below(path, one))]
        if not found[name]:
            raise NotFoundError(errno.ENOENT, f"expected shards of the split {name!r}, got none", str(files))
    return found


def _shards_below(folder: str) -> list[str]:
    """Return the tars in a folder and in those below it; hidden folders, and links to a folder above, are left out."""
    found = []
    for inner, folders, names in os.walk(folder, followlinks=True):
        here = os.path.join(os.path.realpath(inner), "")
        below = ((one, os.path.join(os.path.realpath(os.path.join(inner, one)), "")) for one in folders)
        folders[:] = [one for one, real in below if one[0] != "." and not here.startswith(real)]
        found += [os.path.normpath(os.path.join(inner, one)) for one in names if one.endswith(".tar") and one[0] != "."]
    return sorted(found)


def _below(path: str, name: str) -> str:
    name = without_file(name)
    if is_url(name) or os.path.isabs(name):
        return name
    return f"{path.rstrip('/')}/{name}" if is_url(path) else os.path.join(path, name)


def _shards_at(pattern: str) -> list[str]:
    """Return the shards of a pattern: braces are expanded, wildcards are looked for, other names may not exist."""
    return [shard for one in expand_braces(pattern) for shard in (_matches(one) if _is_wild(one) else [one])]


def _is_wild(path: str) -> bool:
    return (
        not path.startswith(("http://", "https://"))
        and not os.path.exists(path)
        and re.search("[*?]", path) is not None
    )


def _matches(pattern: str) -> list[str]:
    if is_url(pattern):
        files = find(pattern)
        return [files.source.full_name(one) for one in files.paths]
    return sorted(os.path.normpath(one) for one in glob.glob(pattern, recursive=True) if os.path.isfile(one))


def _split_of(path: str) -> str | None:
    """Return the split that the name of a shard has, or one of its folders; None without one.

    >>> [_split_of(one) for one in ("a-test-0.tar", "val_0.tar", "dev/0.tar", "0.tar")]
    ['test', 'validation', 'validation', None]
    """
    name = re.split(r"[/\\\\]", path)[-1]
    places = (name.lower(), path.lower())
    return next((split for place in places for form, split in _SPLITS if form.search(place)), None)
