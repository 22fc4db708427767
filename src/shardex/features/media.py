"""`Media`: what features of images, audio and video have in common; conversion of their values to bytes.

A file stores the bytes of a JPEG, a FLAC or an MP4 untouched; the options of the feature say how values that are not
encoded yet become bytes, and how the bytes are decoded. Room `media` encodes and decodes.
"""

from __future__ import annotations

import dataclasses
import operator
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shardex.columns import (
    Chunks,
    Collected,
    Encoder,
    FieldReader,
    ReadFile,
    arrow_types,
    arrow_values,
    encoders,
    list_readers,
)
from shardex.errors import MissingExtraError, SchemaError, ShardexError
from shardex.features.array_values import array_of_tensor
from shardex.features.codecs import encode_plain_json
from shardex.features.feature import ArrowParts, Feature, narrow, null_mask, unfit
from shardex.features.kinds import all_kinds
from shardex.features.text import Bytes
from shardex.kernel import MISSING, Column, is_tensor

HF_OPTIONS = "shardex "
"""The `id` of a Hugging Face feature begins with this if the rest holds options that Hugging Face does not have."""


@dataclass(frozen=True, slots=True, repr=False)
class Media(Bytes):
    """Base class of images, audio and video: encoded bytes that samples hold decoded, unless `decode` is False.

    The JSON form holds only options that are not the default, so that a later option changes no fingerprint.
    """

    kind: ClassVar[str] = "media"
    extensions: ClassVar[Mapping[str, str]] = {}
    """The extensions of files, and the formats as which arrays of such fields are encoded."""
    decode: bool = dataclasses.field(default=True, kw_only=True)

    @property
    def decoded_dtype(self) -> str:
        """The dtype of decoded values; that of images without a mode may be another one."""
        return "uint8"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._options_text()})"

    def __str__(self) -> str:
        options = self._options_text()
        return f"{self.kind}({options})" if options else self.kind

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, which `Features.from_json` reads."""
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in self._options().items()}
        return {"kind": self.kind, **plain}

    def _options(self) -> dict[str, Any]:
        """Return the options that are not the default."""
        fields = sorted(dataclasses.fields(self), key=lambda one: one.name == "decode")  # last
        values = {one.name: (getattr(self, one.name), one.default) for one in fields}
        return {name: value for name, (value, default) in values.items() if value != default}

    def _options_text(self) -> str:
        return ", ".join(f"{name}={value!r}" for name, value in self._options().items())

    def _check_decode(self) -> None:
        if not isinstance(self.decode, bool):
            raise SchemaError(f"expected decode to be True or False, got {self.decode!r}")

    def encoded(self, value: Any) -> bytes:
        """Return the bytes of a value that is not encoded, or encoded bytes, checked."""
        raise SchemaError(f"expected an image, audio or video, got the feature {self!r}")

    @staticmethod
    def of_extension(extension: str) -> Media | None:
        """Return the feature of files with this extension, by its last part; None if they are no media.

        >>> Media.of_extension("left.JPG"), Media.of_extension("json")
        (Image(format='jpeg'), None)
        """
        last = extension.rpartition(".")[2].lower()
        found = (kind for kind in all_kinds() if issubclass(kind, Media) and last in kind.extensions)
        return next((kind(format=kind.extensions[last]) for kind in found), None)  # type: ignore[call-arg]

    def channels_last(self, tensor: Any) -> NDArray[Any]:
        """Return the array of a tensor of torch, whose channels are before height and width."""
        return self.array_of_tensor(array_of_tensor(tensor))

    def array_of_tensor(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return the array of a tensor of torch, which has the channels before height and width, or before frames."""
        if array.dtype != np.uint8 or array.ndim < 3 or array.shape[-3] not in (1, 3, 4):
            raise SchemaError(
                f"expected a tensor of uint8 with the channels first, such as (3, height, width), for {self}, "
                f"got {array.dtype} of shape {array.shape}"
            )
        return np.moveaxis(array, -3, -1)

    # -- as a feature -----------------------------------------------------------------------------------------

    @classmethod
    def of_hint(cls, hint: Any) -> Feature | None:
        """Return None: only the subclasses know types."""
        return None

    @classmethod
    def of_value(cls, value: Any) -> Feature | None:
        """Return the feature of a `pathlib.Path` whose extension is one of this kind: the file is read and stored."""
        return cls._of_path(value)

    @classmethod
    def _of_path(cls, value: Any) -> Feature | None:
        if not isinstance(value, os.PathLike):
            return None
        known = cls.extensions.get(str(value).rpartition(".")[2].lower())
        return None if known is None else cls(format=known)  # type: ignore[call-arg]

    def join(self, other: Feature) -> Feature | None:
        """Return the feature of files of both formats."""
        return type(self)() if type(other) is type(self) else None

    @classmethod
    def of_arrow(cls, kind: pa.DataType, parts: ArrowParts) -> Feature | None:
        """Return None: Arrow types of bytes are `Bytes`."""
        return None

    def stored_form(self) -> Feature:
        """Return the feature of bytes."""
        return Bytes()

    def fit(self, value: Any, *, stored: bool = False) -> Any:
        """Return the bytes that are stored for a value; `SchemaError` if they are damaged or the value does not fit.

        Bytes are checked and returned untouched; a path is read, a mapping as that of Hugging Face has "bytes" or a
        "path"; decoded values are encoded. `stored` values come from rows: bytes, which are not checked, or what they
        decode to.

        >>> from shardex.features import Image
        >>> Image("L").fit(np.zeros((2, 3), np.uint8))[1:4], Image().fit(b"JPEG", stored=True)
        (b'PNG', b'JPEG')
        >>> Image().fit(b"JPEG")
        Traceback (most recent call last):
        shardex.errors.SchemaError: expected an image...
        """
        if value is NO_MEDIA:
            return b""
        if value is MISSING:
            raise unfit(self, value)
        if isinstance(value, Mapping) and not self.takes_mapping(value):
            value = _of_mapping(value, self)
        if stored and value is not None and not isinstance(value, str | os.PathLike | bytearray | memoryview):
            return value
        if stored:
            return _stored_bytes(value, self)
        if value is None:
            raise SchemaError(f"expected {self}, got none (declare a field that may be missing as optional)")
        try:
            return self.encoded(self.channels_last(value) if is_tensor(value) else value)
        except (SchemaError, MissingExtraError):
            raise
        except ShardexError as error:
            raise SchemaError(str(error)) from error

    def takes_mapping(self, value: Mapping[str, Any]) -> bool:
        """Return whether a mapping holds a decoded value."""
        return False

    def blank(self) -> Any:
        """Return what is stored as no bytes."""
        return NO_MEDIA

    def fits_unchanged(self) -> Callable[[Any], bool]:
        """Return a function that is always False: bytes are checked."""
        return lambda value: False

    def reads(self, kind: pa.DataType) -> bool:
        """Return True for bytes, and for structs of `bytes` and `path`."""
        return arrow_types.is_binary(kind) or arrow_types.is_media_struct(kind)

    def encoder(self) -> Encoder:
        """Return an encoder of bytes."""
        return encoders.Blobs(self.fit, pa.large_binary())

    def collected(self) -> Collected | None:
        """Return how C code collects encoded values."""
        return Collected("ENCODED", encode=self.fit)

    def to_arrow(self, column: Column) -> pa.Array | None:
        """Return None: bytes are checked one by one."""
        return None

    def reader(self, name: str, kind: pa.DataType, chunks: Chunks, read_file: ReadFile) -> FieldReader:
        """Read offsets and bytes, also of structs."""
        if arrow_types.is_media_struct(kind):
            return list_readers.MediaReader(name, self, chunks, kind, read_file)
        return Bytes.reader(self, name, kind, chunks, read_file)

    def holds_media(self, kind: pa.DataType) -> bool:
        """Return whether values are structs."""
        return arrow_types.is_media_struct(kind)

    def without_structs(self, array: pa.Array, read_file: ReadFile) -> pa.Array:
        """Return the bytes of structs."""
        array = arrow_types.storage_array(array, inside=True)
        return (
            arrow_values.bytes_of_structs(array, self, read_file) if arrow_types.is_media_struct(array.type) else array
        )

    # -- plain files ------------------------------------------------------------------------------------------

    def file_extensions(self) -> list[str]:
        """Return the extensions of files that have such values; first the one that arrays are encoded as.

        >>> from shardex.features import Audio
        >>> Audio(format="wav").file_extensions()
        ['wav', 'flac', 'ogg', 'mp3', 'opus', 'aif', 'aiff']
        """
        own = getattr(self, "format", "")
        return sorted(self.extensions, key=lambda name: self.extensions[name] != own)

    def file_extension(self, field: str) -> str:
        """Return the extension of the format that the feature names, whatever the encoding of the bytes."""
        known = self.file_extensions()
        return field if field.rpartition(".")[2].lower() in known else f"{field}.{known[0]}"

    # -- Hugging Face -----------------------------------------------------------------------------------------

    def to_hf(self) -> Any:
        """Return the feature of Hugging Face; options that it does not have are in its `id`.

        >>> from shardex.features import Image
        >>> Image("L", (28, 28)).to_hf()
        {'_type': 'Image', 'decode': True, 'mode': 'L', 'id': 'shardex {"size":[28,28]}'}
        """
        options, held = self.hf_options()
        plain = {"_type": type(self).__name__, "decode": self.decode, **options}
        if own := {name: one for name, one in self.to_json().items() if name not in ("kind", "decode", *held)}:
            plain["id"] = HF_OPTIONS + encode_plain_json(own).decode()
        return plain

    def hf_options(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the options of Hugging Face, and the names of those here that they hold."""
        return {}, ()

    def array_to_hf(self, array: pa.Array, kind: pa.DataType) -> pa.Array:
        """Return structs of bytes and a path."""
        parts = [narrow(array, pa.binary()), pa.nulls(len(array), pa.string())]
        return pa.StructArray.from_arrays(parts, fields=[*kind], mask=null_mask(array))


class _NoMedia:
    """Type of `NO_MEDIA`."""

    def __repr__(self) -> str:
        return "NO_MEDIA"


NO_MEDIA = _NoMedia()
"""The value of a deleted sample, which is stored as no bytes and never read."""


def is_pil_image(value: Any) -> bool:
    """Return whether a value is an image of PIL, without an import of PIL."""
    pil = sys.modules.get("PIL.Image")
    return pil is not None and isinstance(value, pil.Image)


def _stored_bytes(value: Any, feature: Media) -> bytes:
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise SchemaError(f"expected the bytes of {feature}, got {_described(value)}")


def _described(value: Any) -> str:
    return "none" if value is None else f"{type(value).__name__} {value!r}"[:80]


def _of_mapping(value: Mapping[str, Any], feature: Media) -> Any:
    """Return the bytes or the path of a mapping, as samples of Hugging Face have it."""
    if (found := value.get("bytes")) is None:
        found = value.get("path")
    if found is None:
        raise SchemaError(f'expected a mapping with "bytes" or a "path" for {feature}, got {_described(value)}')
    return found


# -- options --------------------------------------------------------------------------------------------------


def one_of(given: Any, known: tuple[str, ...], what: str) -> str:
    """Return a known option."""
    if given not in known:
        raise SchemaError(f"expected one of the {what} {', '.join(known)}, got {given!r}")
    return str(given)


def checked_count(given: Any, what: str) -> int | None:
    """Return a whole number of 1 or more, or None."""
    if given is None:
        return None
    try:
        count = operator.index(given)
    except TypeError:
        count = 0
    if count < 1 or isinstance(given, bool):
        raise SchemaError(f"expected {what} of 1 or more, got {given!r}")
    return count


def checked_size(given: Any) -> tuple[int, int] | None:
    """Return a height and a width, or None."""
    if given is None:
        return None
    try:
        height, width = map(operator.index, given)
    except (TypeError, ValueError):
        height = width = 0
    if min(height, width) < 1:
        raise SchemaError(f"expected a size such as (height, width), both 1 or more, got {given!r}")
    return height, width


def check_begin(feature: Any) -> None:
    """Check where frames begin; "center" and "random" say so themselves, and "uniform" frames begin at the first."""
    begin = feature.begin
    if isinstance(begin, bool) or not isinstance(begin, int) or begin < 0:
        raise SchemaError(f"expected begin to be a frame number of 0 or more, got {begin!r}")
    if begin and feature.sampling != "start" and (feature.frames is not None or feature.sampling != "uniform"):
        raise SchemaError(
            f"expected begin only with sampling='start', got begin={begin}, sampling={feature.sampling!r}"
        )
