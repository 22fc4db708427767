"""Samples of atdata: classes made by `packable`, `DictSample`, and `SampleBatch`.

A sample is packed by the types of its values; annotations decide only which bytes become arrays again. So a field may
hold any value that MessagePack has, whatever its annotation says, as in atdata; the sample classes of the core check.
"""

import dataclasses
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar, cast, dataclass_transform
from weakref import WeakKeyDictionary

import numpy as np

from shardex import samples as core
from shardex.compat.atdata._helpers import FORMAT_SERIALIZERS, bytes_to_array
from shardex.compat.atdata.lens import FieldsOf, Lens, LensNetwork
from shardex.errors import FormatError, SchemaError
from shardex.features import codecs, describe, kinds

T = TypeVar("T")
DT = TypeVar("DT")
Decode = Callable[[bytes], Any]


class ValueRangeError(SchemaError, OverflowError):
    """A whole number that 64 bits cannot hold."""


# -- values ---------------------------------------------------------------------------------------------------------

_PLAIN = (str, int, float, bool, bytes, types.NoneType)
_SMALLEST, _LARGEST = -(1 << 63), (1 << 64) - 1


def _packed(values: Mapping[str, Any], name: str) -> bytes:
    """Return the fields of a sample as MessagePack."""
    out = {}
    for field, value in values.items():
        try:
            out[field] = value if type(value) in (str, float, bool, bytes) else _encoded(value)
        except SchemaError as error:
            raise type(error)(f"{error} - at field {field} of {name}") from None
    return codecs.MSGPACK.encode(out)


def _encoded(value: Any) -> Any:
    """Return the value of a field as MessagePack holds it: arrays, tables and tensors as bytes."""
    if isinstance(value, np.ndarray):
        return FORMAT_SERIALIZERS["ndarray"][0](value)  # with a structured dtype as .npy
    module = type(value).__module__ or ""
    if type(value).__name__ == "DataFrame" and module.startswith("pandas"):
        return FORMAT_SERIALIZERS["dataframe"][0](value)
    if module.startswith("scipy.sparse"):
        return FORMAT_SERIALIZERS["sparse"][0](value)
    if type(value).__name__ == "Tensor" and module.startswith("pyarrow"):
        return FORMAT_SERIALIZERS["arrow_tensor"][0](value)
    return _checked(value)


def _checked(value: Any) -> Any:
    """Return a value without numpy numbers; raise for what would come back as something else."""
    if isinstance(value, np.generic):
        return _checked(value.item())
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            raise SchemaError(f"expected text as keys of a dict, got {describe(wrong[0])}")
        return {str(key): _checked(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_checked(one) for one in value]
    if isinstance(value, int) and not _SMALLEST <= value <= _LARGEST:
        raise ValueRangeError(f"expected a whole number of at most 64 bits, got {value:#x}"[:200])
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if not isinstance(value, _PLAIN):
        raise SchemaError(f"can not serialize {describe(value)}: expected a value that MessagePack has")
    return value


def _unpacked(data: bytes, name: str) -> dict[str, Any]:
    found = codecs.MSGPACK.decode(data)
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise FormatError(f"expected the packed fields of a {name}, got {describe(found)}")
    return found


_decoders: WeakKeyDictionary[type, dict[str, Decode]] = WeakKeyDictionary()


def _decoders_of(kind: type) -> dict[str, Decode]:
    """Return the functions that decode the bytes of some fields of a sample class."""
    if (known := _decoders.get(kind)) is None:
        formats: dict[str, str] = getattr(kind, "__field_formats__", {})
        known = {name: bytes_to_array for name, hint in field_types(kind).items() if _is_array(hint)}
        known |= {name: FORMAT_SERIALIZERS[one][1] for name, one in formats.items()}
        _decoders[kind] = known
    return known


def field_types(kind: type) -> dict[str, Any]:
    """Return the types of the fields of a sample class; names that are not defined here stay text."""
    try:
        return dict(kinds.hints_of(kind))
    except SchemaError:
        names = vars(sys.modules.get(kind.__module__, types))
        return {one.name: kinds.without_aliases(_evaluated(one.type, names)) for one in dataclasses.fields(kind)}


def _evaluated(hint: Any, names: dict[str, Any]) -> Any:
    try:
        return eval(hint, names, {}) if isinstance(hint, str) else hint
    except Exception:  # a name that only type checkers see
        return hint


def _is_array(hint: Any) -> bool:
    """Return whether an annotation is an array, of any dtype and also as one of several types."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(map(_is_array, typing.get_args(hint)))
    return _is_array(typing.get_args(hint)[0]) if origin is typing.Annotated else np.ndarray in (hint, origin)


# -- samples --------------------------------------------------------------------------------------------------------


class DictSample(core.DictSample):
    """A sample whose fields are found in the data: a dict whose fields are also attributes.

    Arrays stay bytes: only a class says which bytes are arrays. `Dataset.as_type` gives samples of a class.

    >>> sample = DictSample({"text": "a", "label": 3})
    >>> sample.text, sample["label"], sample.keys(), DictSample(x=1).get("y", 0)
    ('a', 3, ['text', 'label'], 0)
    """

    __slots__ = ()

    def __init__(self, _data: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(kwargs if _data is None else _data)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Return a sample of these fields."""
        return cls(data)

    @classmethod
    def from_bytes(cls, bs: bytes) -> Self:
        """Return the sample of bytes made by `packed`."""
        return cls(_unpacked(bs, cls.__name__))

    @property
    def _data(self) -> dict[str, Any]:
        return dict(self)

    def keys(self) -> list[str]:  # type: ignore[override]
        """Return the names of the fields."""
        return list(super().keys())

    def values(self) -> list[Any]:  # type: ignore[override]
        """Return the values of the fields."""
        return list(super().values())

    def items(self) -> list[tuple[str, Any]]:  # type: ignore[override]
        """Return names and values of the fields."""
        return list(super().items())

    @property
    def packed(self) -> bytes:
        """The sample as MessagePack."""
        return _packed(self, "the sample")


def _field_or_method(name: str) -> Any:
    def get(self: DictSample) -> Any:
        return self[name] if name in self else getattr(super(DictSample, self), name)

    return property(get, doc="The field of this name; without one, the method of a dict.")


for _name in ("clear", "copy", "fromkeys", "pop", "popitem", "setdefault", "update"):
    setattr(DictSample, _name, _field_or_method(_name))  # samples of atdata are no dicts: these may be fields


class PackableSample(core.PackableSample):
    """Base class of typed samples; a subclass becomes a dataclass, with or without `packable` or `dataclass`."""

    def __post_init__(self) -> None:
        """Make arrays of the bytes in fields that are annotated as arrays."""
        for name, decode in _decoders_of(type(self)).items():
            if isinstance(value := getattr(self, name), bytes):
                setattr(self, name, decode(value))

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        """Return a sample of these fields: all that have no default, and no others."""
        return cls(**data)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the sample of bytes made by `packed`."""
        found = _unpacked(data, cls.__name__)
        for name, decode in _decoders_of(cls).items():
            if type(value := found.get(name)) is bytes:
                found[name] = decode(value)
        return cls(**found)

    @property
    def packed(self) -> bytes:
        """The sample as MessagePack: a map of its fields, with arrays in the compact encoding."""
        values = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        for name, kind in getattr(self, "__field_formats__", {}).items():
            if isinstance(values[name], Mapping) and kind == "safetensors":  # other kinds are known by their values
                values[name] = FORMAT_SERIALIZERS[kind][0](values[name])
        return _packed(values, type(self).__name__)


@dataclass_transform(eq_default=False, field_specifiers=(dataclasses.field,))
def packable(cls: type[T]) -> type[T]:
    """Make a class with annotated fields a typed sample, and register the lens from `DictSample` to it.

    >>> from numpy.typing import NDArray
    >>> @packable
    ... class Image:
    ...     pixels: NDArray
    ...     label: str
    >>> Image.from_bytes(Image(np.zeros((2, 2)), "a").packed)
    Image(pixels=float64[2, 2], label='a')
    """
    return _registered(core.packable_class(_with_arrays(cls), PackableSample, {}, sys._getframe(1)))


def _with_arrays(cls: type[Any]) -> type[Any]:
    """Return a class whose own `__post_init__`, if it has one, is called after arrays were made of bytes."""
    own = vars(cls).get("__post_init__") if isinstance(cls, type) and not issubclass(cls, PackableSample) else None
    if own is not None:

        def __post_init__(self: Any) -> None:
            PackableSample.__post_init__(self)
            own(self)

        cls.__post_init__ = __post_init__
    return cls


def _registered(kind: type[Any]) -> type[Any]:
    LensNetwork().register(Lens(FieldsOf(kind), source=DictSample, view=kind))
    return kind


# -- batches --------------------------------------------------------------------------------------------------------


class SampleBatch(Generic[DT]):
    """Several samples; the name of a field gives its values in all of them, arrays stacked, others in a list.

    >>> batch = SampleBatch[DictSample]([DictSample(x=np.zeros(3), y="a"), DictSample(x=np.ones(3), y="b")])
    >>> batch.x.shape, batch.y, len(batch.samples)
    ((2, 3), ['a', 'b'], 2)
    """

    samples: list[DT]
    __orig_class__: Any

    def __init__(self, samples: Sequence[DT]) -> None:
        self.samples = list(samples)
        self._columns: dict[str, Any] = {}

    @property
    def sample_type(self) -> type[DT]:
        """The type of the samples: ``SampleBatch[T](samples)`` gives it."""
        return cast("type[DT]", typing.get_args(self.__orig_class__)[0])

    def __getattr__(self, name: str) -> Any:
        if name in ("__orig_class__", "sample_type"):  # the property raised
            raise AttributeError("expected a batch with a type, SampleBatch[T](samples), got one without")
        if name.startswith("__") or name in ("samples", "_columns"):
            raise AttributeError(name)
        if name not in self._columns:
            if (names := self._names()) is None or name not in names:
                known = ", ".join(names or ()) or "no fields"
                raise AttributeError(f"expected one of the fields of the samples ({known}), got {name!r}")
            self._columns[name] = _aggregated([_value(sample, name) for sample in self.samples], name)
        return self._columns[name]

    def _names(self) -> Sequence[str]:
        kind = type(self.samples[0]) if self.samples else self.sample_type
        if dataclasses.is_dataclass(kind):
            return [one.name for one in dataclasses.fields(kind)]
        if issubclass(kind, Mapping):
            return list(dict.fromkeys(name for one in self.samples for name in cast("Mapping[str, Any]", one)))
        return getattr(kind, "_fields", ())

    def __len__(self) -> int:
        return len(self.samples)

    def __repr__(self) -> str:
        return f"SampleBatch({len(self.samples)} samples: {', '.join(self._names()) if self.samples else ''})"


def _value(sample: Any, name: str) -> Any:
    return sample.get(name) if isinstance(sample, Mapping) else getattr(sample, name)


def _aggregated(values: list[Any], name: str) -> Any:
    """Return arrays in one array, other values as they are."""
    if not values or not all(isinstance(one, np.ndarray) for one in values):
        return values
    if len(shapes := dict.fromkeys(one.shape for one in values)) > 1:
        found = " and ".join(map(str, list(shapes)[:2]))
        raise SchemaError(f"expected arrays of one shape, got {found} - at field {name}; read batch.samples instead")
    return np.stack(values)
