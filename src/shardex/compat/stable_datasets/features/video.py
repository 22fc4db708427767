"""Feature of videos, which are files next to the shards or bytes in them; and `VideoRef`, which refers to a video."""

from __future__ import annotations

import hashlib
import mimetypes
import os
import re
import secrets
import tempfile
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shardex import features as core
from shardex.compat.stable_datasets.features.base import FeatureType, tensor_of
from shardex.errors import FormatError, NotFoundError, PathError, SchemaError, storage_errors

ASSETS = ("_assets", "video")
"""Folders in a cache that hold its videos."""
_EXTENSIONS = (".mp4", ".avi", ".mov", ".webm", ".mkv")
_STORAGES = ("path", "bytes", "frames")
_PARTS = [
    pa.field("mode", pa.string()),
    pa.field("path", pa.string()),
    pa.field("bytes", pa.large_binary()),
    pa.field("extension", pa.string()),
    pa.field("media_type", pa.string()),
    pa.field("size", pa.int64()),
    pa.field("checksum", pa.string()),
]


@dataclass
class VideoRef:
    """A stored video that is read when it is asked for; `cell` is what the shard holds of it.

    >>> VideoRef(Video("bytes").encode(b"...")).media_type
    'video/mp4'
    """

    cell: Mapping[str, Any]
    cache_dir: Path | None = None
    _temporary: Path | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def mode(self) -> str:
        """Where the video is: "path" (a file of the cache) or "bytes" (in the shard)."""
        return str(self.cell["mode"])

    @property
    def extension(self) -> str:
        """The extension of its file, with the dot."""
        return str(self.cell["extension"])

    @property
    def media_type(self) -> str:
        """Its media type, such as "video/mp4"."""
        return str(self.cell["media_type"])

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return int(self.cell["size"])

    @property
    def checksum(self) -> str | None:
        """Its SHA-256, or the checksum that it was written with."""
        return self.cell.get("checksum")

    @property
    def path(self) -> Path | None:
        """Its file. A video that is stored as bytes gets a temporary file, which exists as long as this object."""
        if self.mode == "path":
            return self._stored_path()
        if self.mode != "bytes":
            return None
        if self._temporary is None:
            descriptor, name = tempfile.mkstemp(suffix=self.extension or ".video")
            with os.fdopen(descriptor, "wb") as file:
                file.write(self.bytes)
            self._temporary = Path(name)
            weakref.finalize(self, _remove, name)
        return self._temporary

    def _stored_path(self) -> Path | None:
        if (given := self.cell.get("path")) is None:
            return None
        path = Path(given)
        if path.is_absolute() or self.cache_dir is None:
            return path
        if ".." in path.parts:
            raise PathError(f"expected the name of a file in {'/'.join(ASSETS)}, got {given!r}")
        return Path(self.cache_dir).joinpath(*ASSETS, path)

    @property
    def bytes(self) -> bytes:
        """Its bytes."""
        data: bytes | None = self.cell.get("bytes")
        if data is not None:
            return data
        if (path := self.path) is None:
            raise FormatError("expected the bytes or the path of a video, got neither")
        with storage_errors(str(path), "read the video"):
            return path.read_bytes()

    def __getstate__(self) -> dict[str, Any]:
        return {"cell": self.cell, "cache_dir": self.cache_dir, "_temporary": None}


def _remove(name: str) -> None:
    with suppress(OSError):
        os.unlink(name)


class Video(FeatureType):
    """A video: ``Video()`` stores the path as it is given, as document 004 says, and nobody looks at the file.

    With `storage` or `allowed_extensions` it is that of newer versions: with "path" the file is copied to the folder of
    the cache, with "bytes" into the shard, and samples have a `VideoRef`.

    >>> Video(), Video("bytes", (".mp4",)), Video().encode("clips/1.mp4")
    (Video(), Video(storage='bytes', allowed_extensions=('.mp4',)), 'clips/1.mp4')
    """

    storage: str
    allowed_extensions: tuple[str, ...]

    def __init__(self, storage: str | None = None, allowed_extensions: tuple[str, ...] | None = None) -> None:
        if storage not in (None, *_STORAGES):
            raise SchemaError(f"expected storage to be one of {', '.join(_STORAGES)}, got {storage!r}")
        self.storage = storage or "path"
        self.allowed_extensions = tuple(map(_with_dot, allowed_extensions or _EXTENSIONS))
        self._is_newest = storage is not None or allowed_extensions is not None

    @property
    def core(self) -> core.Feature:
        """The video, decoded to all of its frames."""
        return core.Video()

    def to_arrow_type(self) -> pa.DataType:
        """Return a struct of the bytes or the path of a video, and what is known of it; a text for ``Video()``."""
        return pa.struct(_PARTS) if self._is_newest else pa.string()

    def arrow_metadata(self) -> dict[bytes, bytes]:
        """Return the metadata of the Arrow field, with the storage."""
        return {**super().arrow_metadata(), b"stable_datasets.video.storage": self.storage.encode()}

    def encode(self, value: Any, *, cache_dir: Path | None = None) -> Any:
        """Return what the shard holds: the given path, or a file is copied to `cache_dir`, bytes are stored."""
        if value is None:
            return None
        if not self._is_newest:
            return _given_path(value)
        if self.storage == "frames":
            raise NotImplementedError(
                "storage='frames' needs Lance files, which shardex does not write: use Video(storage='path') or "
                "'bytes', and decode the frames when samples are read"
            )
        parts = dict(value) if isinstance(value, Mapping) else {}
        if self.storage == "path":
            given = parts.get("path") if parts else value
            return self._encode_path(given, parts.get("checksum"), cache_dir)
        return self._encode_bytes(value, parts)

    def _encode_path(self, given: Any, checksum: str | None, cache_dir: Path | None) -> dict[str, Any]:
        path = self._file(given)
        extension = self._allowed(path.suffix)
        if cache_dir is None:
            raise SchemaError("expected cache_dir, the folder to which videos are copied, got none")
        folder = Path(cache_dir).joinpath(*ASSETS)
        with storage_errors(str(folder), "write the video"):
            folder.mkdir(parents=True, exist_ok=True)
            target = _linked(path, folder, extension) or _copied(path, folder, extension)
            size = target.stat().st_size
        return self._cell("path", extension, size, checksum or target.stem, path=target.name)

    def _encode_bytes(self, value: Any, parts: dict[str, Any]) -> dict[str, Any]:
        extension = parts.get("extension")
        if parts:
            value = parts.get("path") if parts.get("bytes") is None else parts["bytes"]
        if isinstance(value, str | os.PathLike):
            path = self._file(value)
            extension = self._allowed(extension or path.suffix)
            with storage_errors(str(path), "read the video"):
                data = path.read_bytes()
        elif isinstance(value, bytes | bytearray | memoryview):
            data, extension = bytes(value), self._allowed(extension or self.allowed_extensions[0])
        else:
            raise SchemaError(
                "expected a video as bytes, as a path, or as a mapping with 'bytes' or 'path', "
                f"got {type(value).__name__}"
            )
        checksum = parts.get("checksum") or hashlib.sha256(data).hexdigest()
        return self._cell("bytes", extension, len(data), checksum, data=data)

    @staticmethod
    def _cell(
        mode: str, extension: str, size: int, checksum: str, path: str | None = None, data: bytes | None = None
    ) -> dict[str, Any]:
        media_type = mimetypes.guess_type(f"file{extension}")[0] or "application/octet-stream"
        values = (mode, path, data, extension, media_type, size, checksum)
        return dict(zip((one.name for one in _PARTS), values, strict=True))

    @staticmethod
    def _file(given: Any) -> Path:
        if not isinstance(given, str | os.PathLike):
            raise SchemaError(
                "expected the path of a video, or a mapping with 'path' and perhaps 'checksum', "
                f"got {type(given).__name__}"
            )
        path = Path(given)
        if not path.is_file():
            raise NotFoundError(f"{path}: expected the file of a video, got none")
        return path

    def _allowed(self, extension: str) -> str:
        """Return an extension in lower case with its dot; `ValueError` if it is not allowed."""
        found = _with_dot(extension)
        if found not in self.allowed_extensions:
            raise SchemaError(f"expected a video with one of {', '.join(self.allowed_extensions)}, got {extension!r}")
        return found

    def format(
        self, value: Any, *, format_type: str | None, decode_images: bool = True, cache_dir: Path | None = None
    ) -> Any:
        """Return a `VideoRef`; the path itself for caches of early versions, which stored nothing else."""
        if value is None or format_type == "raw":
            return value
        if self.storage == "frames":
            frames = np.asarray(value, np.uint8) if isinstance(value, list) else value
            return tensor_of(frames) if format_type == "torch" and isinstance(frames, np.ndarray) else frames
        return VideoRef(value, cache_dir=cache_dir) if isinstance(value, Mapping) else value

    def texts(self) -> tuple[str, str]:
        """Return the texts without and with options, which early versions did not have."""
        if self.storage == "path" and self.allowed_extensions == _EXTENSIONS:
            return "Video()", "Video(storage='path')"
        return "Video()", f"Video(storage={self.storage!r}, allowed_extensions={self.allowed_extensions!r})"

    def __repr__(self) -> str:
        return self.texts()[self._is_newest]


def _given_path(value: Any) -> str:
    """Return the path of a video, also of one in a newer cache, as text."""
    path = value.get("path") if isinstance(value, Mapping) else value
    if not isinstance(path, str | os.PathLike):
        raise SchemaError(f"expected the path of a video, got {type(value).__name__}; Video('bytes') stores bytes")
    return os.fspath(path)


def _with_dot(extension: str) -> str:
    lower = str(extension).lower()
    return lower if lower.startswith(".") else f".{lower}"


def _linked(path: Path, folder: Path, extension: str) -> Path | None:
    """Link a video of another cache, whose files never change, if its name is its digest."""
    name = path.stem
    if path.parts[-3:-1] != ASSETS or not re.fullmatch("[0-9a-f]{64}", name) or _file_digest(path) != name:
        return None
    target = folder / f"{name}{extension}"
    try:
        os.link(os.path.realpath(path), target)
    except FileExistsError:
        pass
    except OSError:
        return None
    return target


def _copied(path: Path, folder: Path, extension: str) -> Path:
    """Copy a video to a file that has its digest as its name.

    A link would change with the file: builders extract one video after the other to the same path.
    """
    digest, temporary = hashlib.sha256(), folder / f".{secrets.token_hex(6)}.tmp"
    try:
        with open(temporary, "xb") as file, storage_errors(str(path), "copy the video"), open(path, "rb") as given:
            while data := given.read(1 << 20):
                digest.update(data)
                file.write(data)
        target = folder / f"{digest.hexdigest()}{extension}"
        os.replace(temporary, target)
    except BaseException:
        _remove(str(temporary))
        raise
    return target


def _file_digest(path: Path) -> str:
    with storage_errors(str(path), "read the video"), open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
