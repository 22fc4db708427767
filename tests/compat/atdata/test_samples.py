"""Samples of atdata: what is packed, what comes back, and which errors are raised."""

from __future__ import annotations

import dataclasses
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Annotated, Any, Optional

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import shardex as sx
from shardex.compat import atdata
from shardex.compat.atdata import _helpers
from tests.compat.atdata.sample_classes import Picture, picture

PICTURE: Any = Picture  # type checkers do not see what the decorator adds


@atdata.packable
class Annotations:
    """Every way to annotate an array; in this file they are all strings."""

    plain: NDArray  # type: ignore[type-arg]
    typed: NDArray[np.float32]
    old: Optional[NDArray[np.int64]]  # noqa: UP045
    new: NDArray[Any] | None
    noted: Annotated[NDArray[Any], "a note"]
    bare: np.ndarray
    raw: bytes
    tags: list[str] = dataclasses.field(default_factory=list)


ANNOTATIONS: Any = Annotations


def test_packable_keeps_the_class() -> None:
    assert issubclass(PICTURE, atdata.PackableSample)
    assert [one.name for one in dataclasses.fields(PICTURE)] == ["image", "label", "number"]
    assert (PICTURE.__name__, PICTURE.__qualname__) == ("Picture", "Picture")
    assert PICTURE.__module__ == "tests.compat.atdata.sample_classes" and PICTURE.__doc__ == "An image with a label."
    assert list(PICTURE.__annotations__) == ["image", "label", "number"]
    assert isinstance(picture(0), atdata.Packable)
    assert issubclass(PICTURE, sx.PackableSample)  # works in the core too


@pytest.mark.usefixtures("compact_arrays")
def test_packed_bytes_are_those_of_atdata() -> None:
    one = picture(3)
    header = b"\x03<f4\x02" + np.array([2, 3], "<i8").tobytes()
    assert one.packed == msgspec.msgpack.encode(
        {"image": header + one.image.tobytes(), "label": "label 3", "number": 3}
    )
    assert set(one.as_wds) == {"__key__", "msgpack"} and one.as_wds["__key__"] != one.as_wds["__key__"]
    assert "." not in one.as_wds["__key__"]


def test_every_annotation_of_an_array_gives_arrays() -> None:
    """B3.5: only NDArray and NDArray | None did, and not as strings."""
    arrays = {name: np.arange(3) for name in ("plain", "typed", "old", "new", "noted", "bare")}
    one = ANNOTATIONS(**arrays, raw=b"\x00")
    back = ANNOTATIONS.from_bytes(one.packed)
    assert back == one and back.raw == b"\x00"
    assert all(getattr(back, name).flags.writeable for name in arrays)
    assert ANNOTATIONS.from_bytes(dataclasses.replace(one, old=None, new=None).packed).old is None


def test_annotations_that_only_type_checkers_know() -> None:
    @atdata.packable
    class Hidden:
        x: NDArray[Any]
        other: Unknown  # type: ignore[name-defined]  # noqa: F821
        number: int = 3

    kind: Any = Hidden
    back = kind.from_bytes(kind(np.arange(2), "a").packed)
    assert back.x.tolist() == [0, 1] and back.other == "a"
    assert atdata.Dataset[kind]("a.tar").schema["other"] == "Unknown"


def test_bytes_of_array_fields_become_arrays_in_the_constructor() -> None:
    one = Picture(_helpers.array_to_bytes(np.arange(2)), "a", 1)  # type: ignore[arg-type]
    assert one.image.tolist() == [0, 1]


def test_own_post_init_sees_arrays() -> None:
    @atdata.packable
    class Summed:
        x: NDArray[Any]
        total: int = 0

        def __post_init__(self) -> None:
            self.total = int(self.x.sum())

    kind: Any = Summed
    assert kind.from_data({"x": _helpers.array_to_bytes(np.arange(4))}).total == 6


def test_subclasses_with_and_without_dataclass() -> None:
    @dataclasses.dataclass
    class One(atdata.PackableSample):
        x: NDArray[Any]
        y: int = 1
        tags: list[str] = dataclasses.field(default_factory=list)

    class Two(One):
        z: str = "z"

    for made in (One(np.arange(2)), Two(np.arange(2), 3, ["a"])):
        assert type(made).from_bytes(made.packed) == made


def test_samples_with_arrays_compare() -> None:
    assert picture(1) == picture(1) != picture(2)


@pytest.mark.parametrize(
    ("data", "text"),
    [({"label": "a", "number": 1}, "image"), ({"image": 1, "label": "a", "number": 1, "more": 2}, "more")],
)
def test_missing_and_unknown_fields(data: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        PICTURE.from_data(data)
    with pytest.raises(TypeError, match=text):
        PICTURE.from_bytes(msgspec.msgpack.encode(data))


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({"nested": np.zeros(2)}, TypeError),
        ([np.zeros(2)], TypeError),
        ({1: 2}, ValueError),
        (1 << 64, OverflowError),
        (-(1 << 63) - 1, OverflowError),
        (np.array([object()]), ValueError),
        ({1, 2}, TypeError),
        (object(), TypeError),
    ],
)
def test_values_that_would_not_come_back_are_refused(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"at field number of Picture"):
        _ = PICTURE(np.zeros(1), "a", value).packed


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(plain)
def test_any_plain_value_comes_back_whatever_the_annotation(value: Any) -> None:
    """As msgpack packs it, which atdata uses."""
    one = PICTURE(np.zeros(1), "a", value)
    assert PICTURE.from_bytes(one.packed) == one
    assert repr(msgspec.msgpack.decode(one.packed)["number"]) == repr(value)


def test_numpy_numbers_tuples_and_other_containers() -> None:
    values = {"a": (1, np.float32(0.5)), "b": OrderedDict(x=np.int64(3)), "c": bytearray(b"x"), "d": np.bool_(True)}
    one = PICTURE(np.zeros(1), np.str_("a"), values)
    back = PICTURE.from_bytes(one.packed)
    assert back.number == {"a": [1, 0.5], "b": {"x": 3}, "c": b"x", "d": True} and type(back.label) is str


def test_arrays_of_all_kinds_come_back() -> None:
    for array in (
        np.array(3.5),
        np.zeros((2, 0, 3), "<f2"),
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.array(["a", "bcd"]),
        np.array(["2020-01-01"], "M8[D]"),
        np.array([(1, 2.0)], [("x", "i4"), ("y", "f4")]),
        np.array([True, False]),
    ):
        back = PICTURE.from_bytes(PICTURE(array, "", 0).packed).image
        assert (back.dtype, back.shape) == (array.dtype, array.shape) and (back == array).all()


def test_tables_and_tensors_by_field_formats() -> None:
    @atdata.packable
    class Mixed:
        table: Any
        tensor: Any
        weights: Any

    kind: Any = Mixed
    kind.__field_formats__ = {"table": "dataframe", "tensor": "arrow_tensor", "weights": "safetensors"}
    table, tensor = pd.DataFrame({"a": [1, 2]}), pa.Tensor.from_numpy(np.arange(4).reshape(2, 2))
    weights = _helpers.safetensors_to_bytes({"w": np.arange(3.0)})
    back = kind.from_bytes(kind(table, tensor, weights).packed)
    assert back.table.equals(table) and back.tensor.equals(tensor) and back.weights["w"].tolist() == [0, 1, 2]


def test_sparse_matrices() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    matrix = sparse.csr_matrix([[1, 0], [0, 2]])
    assert (_helpers.bytes_to_sparse(_helpers.sparse_to_bytes(matrix)) != matrix).nnz == 0


@pytest.mark.parametrize("name", sorted(_helpers.FORMAT_SERIALIZERS))
def test_helpers_refuse_other_values(name: str) -> None:
    with pytest.raises((TypeError, ImportError)):
        _helpers.FORMAT_SERIALIZERS[name][0](object())


def test_damaged_bytes() -> None:
    for damaged in (b"", b"\x93", msgspec.msgpack.encode([1]), msgspec.msgpack.encode({1: 2}), picture(0).packed[:-3]):
        with pytest.raises(ValueError, match="expected"):
            PICTURE.from_bytes(damaged)
        with pytest.raises(ValueError, match="expected"):
            atdata.DictSample.from_bytes(damaged)
    for cut in (b"", b"\x03<f4", _helpers.array_to_bytes(np.zeros(3))[:-1]):
        with pytest.raises(ValueError, match="expected"):
            _helpers.bytes_to_array(cut)


# -- DictSample -----------------------------------------------------------------------------------------------------


def test_dict_sample() -> None:
    data = {"text": "a", "label": 3}
    for one in (atdata.DictSample(data), atdata.DictSample(text="a", label=3), atdata.DictSample(_data=data)):
        assert (one.text, one["label"], "text" in one, "x" in one) == ("a", 3, True, False)
        assert (one.keys(), one.values(), one.items()) == (["text", "label"], ["a", 3], [("text", "a"), ("label", 3)])
        assert one.get("x") is None and one.get("x", 7) == 7 and one.to_dict() == data
        assert atdata.DictSample.from_bytes(one.packed) == one == pickle.loads(pickle.dumps(one))
        assert msgspec.msgpack.decode(one.as_wds["msgpack"]) == data and {**one} == data
        with pytest.raises(AttributeError, match="text, label"):
            _ = one.missing
        with pytest.raises(KeyError, match="missing"):
            one["missing"]


def test_fields_of_dict_samples_with_the_names_of_methods_of_a_dict() -> None:
    names = ("clear", "copy", "fromkeys", "pop", "popitem", "setdefault", "update")
    one = atdata.DictSample.from_bytes(atdata.DictSample({name: k for k, name in enumerate(names)}).packed)
    assert [getattr(one, name) for name in names] == list(range(7))
    assert atdata.SampleBatch[atdata.DictSample]([one, one]).copy == [1, 1]
    other = atdata.DictSample(x=1)
    assert other.copy() == {"x": 1} and other.pop("x") == 1 and other.fromkeys("y") == {"y": None}


def test_dict_sample_of_a_packed_one_keeps_bytes() -> None:
    one = atdata.DictSample.from_bytes(picture(1).packed)
    assert type(one["image"]) is bytes and _helpers.bytes_to_array(one["image"]).shape == (2, 3)


# -- batches --------------------------------------------------------------------------------------------------------


def test_batches_stack_arrays_and_list_other_values() -> None:
    batch = atdata.SampleBatch[PICTURE]([picture(0), picture(1)])
    assert batch.image.shape == (2, 2, 3) and batch.label == ["label 0", "label 1"] and batch.number == [0, 1]
    assert batch.image is batch.image and batch.sample_type is PICTURE and batch.samples[1] == picture(1)
    with pytest.raises(AttributeError, match="image, label, number"):
        _ = batch.other
    assert pickle.loads(pickle.dumps(batch)).image.shape == (2, 2, 3)
    with pytest.raises(AttributeError, match=r"SampleBatch\[T\]"):
        _ = atdata.SampleBatch([picture(0)]).sample_type


def test_batches_of_arrays_of_different_shapes() -> None:
    batch = atdata.SampleBatch[PICTURE]([PICTURE(np.zeros(n), "a", n) for n in (2, 3)])
    with pytest.raises(ValueError, match=r"\(2,\) and \(3,\) - at field image"):
        _ = batch.image
    assert batch.number == [2, 3]


def test_batches_with_missing_arrays_are_lists() -> None:
    batch = atdata.SampleBatch[PICTURE]([PICTURE(np.zeros(2), "a", 0), PICTURE(None, "b", 1)])
    assert batch.image[0].shape == (2,) and batch.image[1] is None


def test_batches_of_dict_samples_have_fields() -> None:
    """B3.9: an attribute raised KeyError."""
    batch = atdata.SampleBatch[atdata.DictSample]([atdata.DictSample(x=1, y="a"), atdata.DictSample(x=2)])
    assert batch.x == [1, 2] and batch.y == ["a", None]


def test_batches_have_inherited_fields() -> None:
    class Base(atdata.PackableSample):
        x: int

    class Derived(Base):
        y: int

    assert atdata.SampleBatch[Derived]([Derived(1, 2), Derived(3, 4)]).x == [1, 3]


def test_core_reads_a_class_of_atdata(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", [picture(k) for k in range(3)], PICTURE)
    assert ds.as_type(PICTURE)[2] == picture(2)


def test_core_writes_dict_samples(tmp_path: Path) -> None:
    samples = [atdata.DictSample(x=k, name=f"n{k}") for k in range(3)]
    assert list(sx.write(tmp_path / "d", samples)) == samples == list(sx.open(samples))
