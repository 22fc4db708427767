"""Features of columns, and what a dataset builder says of itself: version, sources, description."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NewType

import pyarrow as pa

from shardex import features as core
from shardex.compat.stable_datasets._video_decode import VideoDecodeConfig, VideoDecodeFn, VideoDecodeFnBatched
from shardex.compat.stable_datasets.features import (
    Array3D,
    Array4D,
    ClassLabel,
    FeatureType,
    Image,
    Sequence,
    Value,
    Video,
    VideoRef,
)
from shardex.errors import ArgumentError, SchemaError

__all__ = [
    "URL",
    "Array3D",
    "Array4D",
    "BuilderConfig",
    "ClassLabel",
    "DatasetInfo",
    "DatasetSource",
    "DownloadInfo",
    "FeatureType",
    "Features",
    "Image",
    "Sequence",
    "Value",
    "Version",
    "Video",
    "VideoDecodeConfig",
    "VideoDecodeFn",
    "VideoDecodeFnBatched",
    "VideoRef",
    "collect_dataset_citations",
]

URL = NewType("URL", str)


class Features(OrderedDict[str, FeatureType]):
    """Names and features of the columns of a dataset, in order.

    >>> features = Features({"x": Value("int32")}); features, features.fingerprint_data()
    (Features({'x': Value('int32')}), "{'x': Value('int32')}")
    """

    def to_arrow_schema(self) -> pa.Schema:
        """Return the Arrow schema of a cache, in which the metadata of each field names its feature."""
        return pa.schema(
            [pa.field(name, one.to_arrow_type(), metadata=one.arrow_metadata()) for name, one in self._all()]
        )

    def fingerprint_data(self) -> str:
        """Return the text of which the fingerprint of a cache is made."""
        return repr(dict(self))

    @property
    def core(self) -> core.Features:
        """The same columns as features of shardex."""
        return core.Features({name: one.core for name, one in self._all()})

    def fingerprints(self) -> list[str]:
        """Return the fingerprint of a cache with these columns, then those that other versions gave it."""
        versions = zip(*(one.texts() for _, one in self._all()), strict=True)
        others = (", ".join(f"{name!r}: {text}" for name, text in zip(self, texts, strict=True)) for texts in versions)
        every = dict.fromkeys((self.fingerprint_data(), *(f"{{{other}}}" for other in others)))
        return [hashlib.sha256(text.encode()).hexdigest()[:16] for text in every]

    def _all(self) -> Iterator[tuple[str, FeatureType]]:
        for name, one in self.items():
            if not isinstance(one, FeatureType):
                raise SchemaError(f"expected a feature such as Value('int64'), got {one!r} - at column {name}")
            yield name, one

    def __repr__(self) -> str:
        return f"Features({dict(self)!r})"


class Version:
    """A version of three numbers.

    >>> Version("1.2.3").minor, str(Version("1.2.3")), Version("1.0.0") == Version("1.0.0")
    (2, '1.2.3', True)
    """

    def __init__(self, version_str: str) -> None:
        try:
            self.major, self.minor, self.patch = (int(part) for part in version_str.split("."))
        except (ValueError, AttributeError):
            raise ArgumentError(f"expected a version such as '1.0.0', got {version_str!r}") from None
        self._text = version_str

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Version('{self._text}')"

    def _numbers(self) -> tuple[int, int, int]:
        return self.major, self.minor, self.patch

    def __eq__(self, other: object) -> bool:
        return self._numbers() == other._numbers() if isinstance(other, Version) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._numbers())


@dataclass
class DatasetInfo:
    """What a builder says of its dataset."""

    features: Features
    description: str = ""
    supervised_keys: tuple[str, ...] | None = None
    homepage: str = ""
    citation: str = ""
    license: str = ""
    config_name: str = ""


@dataclass
class BuilderConfig:
    """A variant of a dataset; builders derive their own with more attributes."""

    name: str = "default"
    version: Version | None = None
    description: str = ""


# -- where raw data comes from ------------------------------------------------------------------------------------


def _check_text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise ArgumentError(f"expected {what} as a text that is not empty, got {value!r}")
    return value


@dataclass
class DownloadInfo:
    """A file to download: its URL, others that are tried after it, and its checksum, such as "sha256:0a1b..."."""

    url: str
    fallbacks: list[str] = field(default_factory=list)
    checksum: str | None = None
    filename: str | None = None

    def __post_init__(self) -> None:
        _check_text(self.url, "url")
        if not isinstance(self.fallbacks, list):
            raise ArgumentError(f"expected fallbacks as a list of URLs, got {self.fallbacks!r}")
        for one in self.fallbacks:
            _check_text(one, "a URL of fallbacks")
        for name in ("checksum", "filename"):
            if (given := getattr(self, name)) is not None and not isinstance(given, str):
                raise ArgumentError(f"expected {name} as a text, got {given!r}")

    def all_urls(self) -> list[str]:
        """Return all URLs, in the order in which they are tried."""
        return [self.url, *self.fallbacks]


@dataclass(frozen=True, eq=False)
class DatasetSource(Mapping[str, object]):
    """Where the raw data of a dataset comes from, and how to cite it; also a mapping of these parts.

    >>> source = DatasetSource("https://example.org", {"train": "https://example.org/train.zip"}, "@misc{x}")
    >>> source.assets["train"].all_urls(), list(source)
    (['https://example.org/train.zip'], ['homepage', 'assets', 'citation'])
    """

    homepage: str
    assets: Mapping[str, DownloadInfo]
    citation: str
    license: str = ""
    checksums: Mapping[str, str] | None = None

    def __init__(
        self,
        homepage: str,
        assets: Mapping[str, DownloadInfo | str],
        citation: str,
        license: str = "",
        checksums: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(license, str):
            raise ArgumentError(f"expected license as a text, got {license!r}")
        values = {
            "homepage": str(_check_text(homepage, "homepage")),
            "assets": _checked_assets(assets),
            "citation": _check_text(citation, "citation"),
            "license": license,
            "checksums": None if checksums is None else _checked_checksums(checksums),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __getitem__(self, key: str) -> object:
        if key in ("homepage", "assets", "citation", "license", "checksums"):
            return getattr(self, key)
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        yield from ("homepage", "assets", "citation")
        if self.license:
            yield "license"
        if self.checksums is not None:
            yield "checksums"

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __reduce__(self) -> tuple[Any, ...]:
        checksums = None if self.checksums is None else dict(self.checksums)
        return type(self), (self.homepage, dict(self.assets), self.citation, self.license, checksums)


def _checked_assets(assets: Any) -> Mapping[str, DownloadInfo]:
    if not isinstance(assets, Mapping):
        raise ArgumentError(f"expected assets as a mapping of names to URLs, got {assets!r}")
    for name, one in assets.items():
        _check_text(name, "the name of an asset")
        if not isinstance(one, str | DownloadInfo):
            raise ArgumentError(f"expected a URL or DownloadInfo for the asset {name!r}, got {one!r}")
    return MappingProxyType({name: DownloadInfo(one) if isinstance(one, str) else one for name, one in assets.items()})


def _checked_checksums(checksums: Any) -> Mapping[str, str]:
    if not isinstance(checksums, Mapping):
        raise ArgumentError(f"expected checksums as a mapping of names to texts, got {checksums!r}")
    return MappingProxyType(
        {_check_text(name, "a name"): _check_text(one, f"the checksum of {name!r}") for name, one in checksums.items()}
    )


def collect_dataset_citations(sources: Iterable[DatasetSource | Mapping[str, object]]) -> list[str]:
    """Return the citations of several sources, each once, in the order of the first source that has it.

    >>> collect_dataset_citations([{"citation": "b"}, {"citation": "a"}, {"citation": "b"}])
    ['b', 'a']
    """
    return list(dict.fromkeys(str(source["citation"]) for source in sources))
