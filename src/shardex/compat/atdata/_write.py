"""Writes samples into tar shards, with manifests beside them; all files appear together, or none.

A shard is written by the core and has one member for each sample: ``{key}.msgpack``. Shards that were written before
under the same pattern are replaced, and so are their manifests.
"""

import gzip
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import xxhash

from shardex.compat.atdata._dataset import Dataset
from shardex.compat.atdata._logging import get_logger, log_operation
from shardex.compat.atdata._protocols import Packable
from shardex.compat.atdata._sources import URLSource, without_file
from shardex.compat.atdata.manifest._builder import ManifestBuilder
from shardex.compat.atdata.manifest._manifest import JSON_SUFFIX, PARQUET_SUFFIX
from shardex.compat.atdata.manifest._writer import ManifestWriter
from shardex.dataset import create
from shardex.errors import ArgumentError, SchemaError, storage_errors
from shardex.features import describe
from shardex.files import Stage, forget_appends
from shardex.formats import open_rows
from shardex.samples import DictSample, PackableSample
from shardex.sources import is_url

ST = TypeVar("ST")
_MAXCOUNT, _MAXSIZE = 100_000, 3_000_000_000
"""Limits of a shard if only the other limit is given."""
_UNLIMITED = 1 << 62
_NUMBER = re.compile(r"%0?(\d*)d")


def write_samples(
    samples: Iterable[ST],
    path: str | os.PathLike[str],
    *,
    maxcount: int | None = None,
    maxsize: int | None = None,
    manifest: bool = False,
    content_metadata: Any = None,
) -> Dataset[ST]:
    """Write samples to the tar at `path`, and return them as a dataset; what was there is replaced.

    With `maxcount` (samples) or `maxsize` (bytes) there are several shards: ``train.tar`` means ``train-000000.tar``
    and so on, or `path` is a pattern such as ``train-%04d.tar``. `manifest` writes a manifest beside each shard. A name
    that ends in ``gz`` is that of a compressed tar, which is slower to read.
    If samples cannot be made or packed, or there are none, nothing is written.

    >>> import tempfile; from shardex.compat.atdata._samples import packable
    >>> @packable
    ... class Point:
    ...     x: int
    >>> ds = write_samples([Point(1), Point(2)], tempfile.mkdtemp() + "/points.tar", content_metadata={"lab": "a"})
    >>> list(ds), ds.content_metadata
    ([Point(x=1), Point(x=2)], {'lab': 'a'})
    """
    if content_metadata is not None and not isinstance(content_metadata, dict | Packable):
        raise ArgumentError(f"expected content_metadata as a sample or a dict, got {describe(content_metadata)}")
    written = write_shards(samples, path, maxcount=maxcount, maxsize=maxsize, manifest=manifest)
    typed: Any = Dataset
    dataset: Dataset[ST] = typed[written.sample_type](URLSource.of(written.paths))
    dataset.content_metadata = content_metadata
    return dataset


class Written(NamedTuple):
    """What `write_shards` wrote."""

    paths: list[str]
    sample_type: type


def write_shards(
    samples: Iterable[Any],
    path: str | os.PathLike[str],
    *,
    maxcount: int | None = None,
    maxsize: int | None = None,
    manifest: bool = False,
) -> Written:
    """Write samples to the tar at `path`, or to several with at most `maxcount` samples and `maxsize` bytes each."""
    names = _Names(path, sharded=maxcount is not None or maxsize is not None)
    limits = _limits(maxcount, maxsize)
    with log_operation("write_samples", path=os.fspath(path), sharded=names.sharded, manifest=manifest):
        # In the folder itself, if it exists: the folder above may be another file system, or read-only.
        inside = os.path.join(names.folder, f".{names.base}.{secrets.token_hex(6)}.tmp")
        there = os.path.isdir(names.folder)
        stage = Stage(names.folder, "append", folder=inside if there else None, replaces=names.replaced)
        try:
            written = _Shards(stage, names, manifest)
            written.write(samples, limits)
            stage.publish()
            forget_appends(names.folder)
        finally:
            stage.discard()
        kind = written.checked_type()
        paths = [os.path.join(names.folder, names.name(number)) for number in range(written.count)]
        get_logger().info("write_samples: wrote %d shard(s), sample_type=%s", len(paths), kind.__name__)
    return Written(paths, kind)


def _limits(maxcount: int | None, maxsize: int | None) -> dict[str, Any]:
    if maxcount is None and maxsize is None:
        return {"shard_rows": _UNLIMITED, "shard_size": _UNLIMITED}
    given = {"maxcount": maxcount, "maxsize": maxsize}
    if wrong := [f"{name}={value!r}" for name, value in given.items() if value is not None and value < 1]:
        raise ArgumentError(f"expected shards of at least one sample and one byte, got {', '.join(wrong)}")
    rows = _MAXCOUNT if maxcount is None else int(maxcount)
    return {"shard_rows": rows, "shard_size": _MAXSIZE if maxsize is None else int(maxsize)}


class _Names:
    """The names of shards and of their manifests."""

    def __init__(self, path: str | os.PathLike[str], *, sharded: bool) -> None:
        text = without_file(os.fspath(path))
        if is_url(text):
            raise ArgumentError(f"expected a local path, got {text}: shardex.write writes to URLs")
        full = Path(os.path.abspath(os.path.expanduser(text)))
        self.folder, self.base, self.sharded = os.path.realpath(full.parent), full.name, sharded
        if not self.base or full.is_dir():
            raise ArgumentError(f"expected the path of a tar, got a folder: {full}")
        self._pattern = self.base if not sharded or "%" in self.base else f"{full.stem}-%06d{full.suffix}"
        if sharded:
            _check_pattern(self._pattern)

    def name(self, number: int) -> str:
        """Return the name of a shard."""
        return self._pattern % number if self.sharded else self._pattern

    def manifest(self, number: int) -> str:
        """Return the names of the files of a manifest, without their endings."""
        return self.name(number).removesuffix(".tar")

    @property
    def replaced(self) -> str:
        """Regular expression of the files that are replaced: shards of this name or pattern, and their manifests."""
        found = _NUMBER.search(self._pattern) if self.sharded else None
        begin, after = "", self._pattern
        if found is not None:
            after = self._pattern[found.end() :]
            begin = rf"{re.escape(self._pattern[: found.start()])}\d{{{found[1] or 1},}}"
        endings = "|".join(map(re.escape, (JSON_SUFFIX, PARQUET_SUFFIX)))
        return f"{begin}{re.escape(after)}|{begin}{re.escape(after.removesuffix('.tar'))}({endings})"


def _check_pattern(pattern: str) -> None:
    try:
        different = pattern % 0 != pattern % 1
    except (TypeError, ValueError):
        different = False
    if not different:
        raise ArgumentError(f"expected a pattern with one number, such as train-%06d.tar, got {pattern!r}")


class _Shards:
    """Writes samples to shards in a stage, and collects what their manifests say."""

    def __init__(self, stage: Stage, names: _Names, manifest: bool) -> None:
        self._stage, self._names, self._manifest = stage, names, manifest
        self._type: type | None = None
        self._values: list[dict[str, Any]] = []
        self._keys: list[str] = []
        self.count = 0
        """Number of shards."""

    def checked_type(self) -> type:
        """The type of the samples; raises an error if there were none."""
        if self._type is None:
            raise ArgumentError("samples must be non-empty: expected at least one sample, got none")
        return self._type

    def write(self, samples: Iterable[Any], limits: Mapping[str, Any]) -> None:
        """Write all samples, give the shards their names, and write the manifests."""
        tars = self._stage.place.path("tars")
        with create(tars, {"msgpack": bytes}, format="tar", **limits) as out:
            for record in self._records(samples):
                out.append(record)
            self.checked_type()
        found = sorted(name for name in os.listdir(tars) if name.endswith(".tar"))
        self.count = len(found)
        if self._manifest:
            self._write_manifests(tars)
        for number, name in enumerate(found):
            _move(os.path.join(tars, name), self._stage.place.path(self._names.name(number)))
        for rest, _, files in os.walk(tars, topdown=False):
            for name in files:
                os.unlink(os.path.join(rest, name))
            os.rmdir(rest)

    def _records(self, samples: Iterable[Any]) -> Iterator[dict[str, Any]]:
        values_of = None
        for number, sample in enumerate(samples):
            if self._type is None:
                self._type = type(sample)
                if self._manifest:
                    values_of = ManifestBuilder(self._type, "").values_of
            record = _record(sample, number)
            if values_of is not None:
                self._keys.append(record["__key__"])
                self._values.append(values_of(sample))
            yield record

    def _write_manifests(self, tars: str) -> None:
        rows: Any = open_rows(tars, "tar", schema={"msgpack": bytes}, progress=False)
        ranges = rows.needed_ranges(np.arange(len(rows)), ["msgpack"])
        files, offsets, sizes = ranges.which, ranges.begin.tolist(), ranges.length.tolist()
        ends = np.searchsorted(files, np.arange(self.count + 1))
        for number, (begin, end) in enumerate(pairwise(ends.tolist())):
            base = self._names.manifest(number)
            builder = ManifestBuilder(self.checked_type(), base)
            for row in range(begin, end):
                builder.add_values(self._keys[row], offsets[row], sizes[row], self._values[row])
            ManifestWriter(self._stage.place.path(base)).write(builder.build())


def _move(tar: str, path: str) -> None:
    """Give a tar its name; names that end in ``gz`` are those of compressed files."""
    if not path.endswith("gz"):
        os.rename(tar, path)
        return
    with (
        storage_errors(path, "write"),
        open(tar, "rb") as plain,
        open(path, "wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as out,  # the same bytes for the same samples
    ):
        shutil.copyfileobj(plain, out, 1 << 20)


_NEW_KEYS: Sequence[Any] = (PackableSample.as_wds, DictSample.as_wds)
"""Properties that give a sample a new key, and not one of its own."""


def _record(sample: Any, number: int) -> dict[str, Any]:
    """Return the key and the bytes of a sample.

    The key is that of `as_wds` if the sample has one of its own. Otherwise it is made of the sample's number and
    content: the same samples give the same files, and other samples have other keys.
    """
    if getattr(type(sample), "as_wds", None) not in _NEW_KEYS or (isinstance(sample, dict) and "__key__" in sample):
        try:
            given = sample.as_wds
            return {"__key__": given["__key__"], "msgpack": given["msgpack"]}
        except (AttributeError, KeyError, TypeError):
            raise SchemaError(f"expected a packable sample, got {describe(sample)} - at sample {number}") from None
    packed = sample.packed
    return {"__key__": f"{number:09d}-{xxhash.xxh3_64_hexdigest(packed)}", "msgpack": packed}
