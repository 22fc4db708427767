"""Collectors: C code and encoders collect the same samples into the same arrays, and refuse the same values."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardex.columns import BatchBuilder, collect
from shardex.columns.collect import MOST_ROWS, BufferCollector, Collector, EncoderCollector, collector_of
from shardex.errors import SchemaError
from shardex.features import Array, ClassLabel, Features, Optional, Sequence, arrow_schema
from shardex.kernel import collect_kernel
from tests.strategies import datasets

KINDS = [EncoderCollector, *([BufferCollector] if collect_kernel is not None else [])]
needs_c = pytest.mark.skipif(collect_kernel is None, reason="the C kernel is not used")

Samples = list[dict[str, Any]]


def batch_of(collector: Collector, features: Features) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_arrays(collector.finish(), schema=arrow_schema(features))
    batch.validate(full=True)
    return batch


def ipc(batch: pa.RecordBatch) -> bytes:
    """Return the bytes that a file of the batch has: padding, and what lies below nulls, too."""
    return bytes(batch.serialize())


def outcome(collector: Collector, sample: Any) -> tuple[str, str | None, int, int]:
    """Append a sample; return the error and its field, and what there is then."""
    message, rows = "", collector.rows
    try:
        collector.append(sample)
    except SchemaError as error:
        message = str(error)
        collector.truncate(rows)
    return message, collector.field if message else None, collector.rows, collector.nbytes


@needs_c
@settings(deadline=None)
@given(datasets(max_size=40), st.lists(st.integers(0, 39), max_size=4), st.data())
def test_c_and_encoders_give_the_same_arrays(
    data: tuple[Features, Samples], cuts: list[int], more: st.DataObject
) -> None:
    features, samples = data
    one, other = EncoderCollector(features), BufferCollector(features)
    for number, given_sample in enumerate(samples):
        sample = dict(given_sample)
        if number in cuts:
            assert ipc(batch_of(one, features)) == ipc(batch_of(other, features))
        if more.draw(st.integers(0, 9)) == 0:  # a value of another field, or none
            name = more.draw(st.sampled_from(list(features)))
            sample[name] = sample[more.draw(st.sampled_from(list(features)))]
            if more.draw(st.booleans()):
                del sample[name]
        assert outcome(one, sample) == outcome(other, sample)
    assert ipc(batch_of(one, features)) == ipc(batch_of(other, features))


ODD: list[tuple[Any, Any]] = [
    ("int8", np.int64(5)),
    ("int8", np.uint8(200)),
    ("int8", True),
    ("int64", 2**63),
    ("int64", -(2**63)),
    ("uint64", 2**64 - 1),
    ("uint64", -1),
    ("uint64", 2**64),
    ("uint16", np.int64(-1)),
    ("float32", 1),
    ("float32", 3.5e38),
    ("float32", np.inf),
    ("float32", np.float64(np.nan)),
    ("float32", np.float16(2.5)),
    ("float16", 0.1),
    ("float64", np.float32(0.1)),
    ("float64", 2**60 + 1),
    ("float64", 10**400),
    ("float64", "1"),
    ("bool", np.bool_(True)),
    ("bool", np.int8(1)),
    (str, "é"),
    (str, np.str_("a")),
    (str, "\ud800"),
    (str, b"a"),
    (bytes, b""),
    (bytes, bytearray(b"ab")),
    (bytes, memoryview(b"abcd")[::2]),
    (bytes, "a"),
    (ClassLabel(("cat", "dog")), "dog"),
    (ClassLabel(("cat", "dog")), 2),
    (Array("float32", (2,)), [1, 2]),
    (Array("float32", (2,)), np.arange(4, dtype=np.float32)[::2]),
    (Array("float32", (2,)), np.arange(2, dtype=">f4")),
    (Array("float32", (2,)), np.arange(2, dtype=np.dtype("f4", metadata={"a": 1}))),
    (Array("float32", (2,)), np.ma.array([1.0, 2.0], np.float32)),
    (Array("float32", ()), np.float32(1)),
    (Array("float32", ()), np.array(1, np.float32)),
    (Array("int16", (2, 3)), np.arange(6, dtype=np.int16).reshape(3, 2).T),
    (Array("int16", (2, 3)), np.arange(6, dtype=np.int16).reshape(2, 3)[::-1, ::-1]),
    (Array("int16", (None, 3)), np.arange(6, dtype=np.int16).reshape(2, 3)[:, ::-1]),
    (Array("int16", (None, 3)), np.zeros((0, 3), np.int16)),
    (Array("int16", (None, 0)), np.zeros((4, 0), np.int16)),
    (Array("int16", (None, 3)), np.zeros((2, 4), np.int16)),
    (Array("int16", (0, 3)), np.zeros((0, 3), np.int16)),
    (Array("complex64", (None,)), np.array([1j, 2], np.complex64)),
    (Array("complex128", (2,)), np.array([1j, 2])),
    (Array("bool", (3,)), np.array([True, False, True])),
    (Array("uint8", (None,)), np.frombuffer(b"read only", np.uint8)),
    (Array("uint8", (1,) * 20), np.zeros((1,) * 20, np.uint8)),
]


@needs_c
@pytest.mark.parametrize(("feature", "value"), ODD, ids=[f"{f}-{k}" for k, (f, _) in enumerate(ODD)])
@pytest.mark.parametrize("optional", [False, True])
def test_unusual_values(feature: Any, value: Any, optional: bool) -> None:
    plain = Features.of({"x": feature})
    features = Features({"x": Optional(plain["x"]) if optional else plain["x"]})
    one, other = EncoderCollector(features), BufferCollector(features)
    for sample in [{"x": value}, {"x": None}, {}, {"x": value}, {"x": value, "y": 1}]:
        assert outcome(one, sample) == outcome(other, sample)
    assert ipc(batch_of(one, features)) == ipc(batch_of(other, features))


@pytest.mark.parametrize("kind", KINDS)
class TestExtend:
    features = Features.of({"n": int, "s": str | None, "a": Array("int32", (None,)), "l": Sequence(int)})

    def samples(self, count: int) -> Iterator[Any]:
        """Yield samples that share one array, as a generator does that reuses its memory."""
        shared = np.zeros(100, np.int32)
        for n in range(count):
            shared[:] = n
            yield {"n": n, "s": None if n % 3 == 0 else "é" * n, "a": shared[: n % 100], "l": [n] * (n % 3)}

    def collector(self, kind: Any) -> Collector:
        made: Collector = kind(self.features)
        return made

    def test_gives_what_append_gives(self, kind: Any) -> None:
        one, other = self.collector(kind), self.collector(kind)
        for sample in self.samples(500):
            one.append(sample)
        assert not other.extend(self.samples(500), 0, 1 << 40, MOST_ROWS, dict)
        assert one.rows == other.rows == 500
        assert ipc(batch_of(one, self.features)) == ipc(batch_of(other, self.features))

    def test_ends_at_the_limits(self, kind: Any) -> None:
        samples, found = self.samples(1000), []
        collector = self.collector(kind)
        while collector.extend(samples, 0, 5000, 40, dict):
            found.append((collector.rows, collector.nbytes))
            collector.finish()
        assert [rows for rows, _ in found[:4]] == [40, 32, 16, 16]
        assert all(size >= 5000 for rows, size in found if rows != 40)

    def test_rows_before_count(self, kind: Any) -> None:
        collector = self.collector(kind)
        assert collector.extend(self.samples(1000), 7, 0, MOST_ROWS, dict)
        assert collector.rows == 1

    def test_an_error_of_the_samples_passes_through(self, kind: Any) -> None:
        def samples() -> Iterator[Any]:
            yield from self.samples(5)
            raise SchemaError("expected something else")

        builder = BatchBuilder(self.features, arrow_schema(self.features))
        builder._collector = collector = self.collector(kind)
        with pytest.raises(SchemaError, match=r"^expected something else$"):
            builder.extend(samples(), 1 << 20)
        assert builder.rows == collector.rows == 5

    def test_a_sample_that_does_not_fit_is_named(self, kind: Any) -> None:
        builder = BatchBuilder(self.features, arrow_schema(self.features))
        builder._collector = self.collector(kind)
        for name, value in [("n", "x"), ("l", [None]), ("a", np.zeros((1, 1), np.int32)), ("s", 7)]:
            first = builder.finished + builder.rows
            samples = [*self.samples(3), {**next(self.samples(1)), name: value}, *self.samples(2)]
            with pytest.raises(SchemaError, match=f"at sample {first + 3}, field {name}$"):
                builder.extend(iter(samples), 1 << 20)
            assert builder.rows == first + 3
        assert builder.finish().num_rows == 12

    def test_mappings_are_converted(self, kind: Any) -> None:
        collector, seen = self.collector(kind), []

        def convert(pairs: Any) -> dict[str, Any]:
            seen.append(len(pairs))
            return dict(pairs)

        some = [tuple(sample.items()) if n % 2 else sample for n, sample in enumerate(self.samples(40))]
        assert not collector.extend(iter(some), 0, 1 << 40, MOST_ROWS, convert)
        assert (collector.rows, len(seen)) == (40, 20)


def test_memory_of_arrays_is_not_used_again_while_they_exist() -> None:
    features = Features.of({"x": Array("uint8", (1 << 20,))})
    collector, kept = collector_of(features), []
    for number in range(8):
        collector.append({"x": np.full(1 << 20, number, np.uint8)})
        kept.append(collector.finish()[0])
    assert [array.values[-1].as_py() for array in kept] == list(range(8))


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize("kind", KINDS)
def test_subclasses_of_int_are_stored(kind: Any) -> None:
    features = Features.of({"a": "int64", "b": "uint64", "c": ClassLabel(["x", "y"])})
    collector = kind(features)
    collector.append({"a": Colour.RED, "b": Colour.RED, "c": Colour.RED})
    assert batch_of(collector, features).to_pylist() == [{"a": 1, "b": 1, "c": 1}]


@needs_c
@pytest.mark.parametrize("feature", [list[int], dict, Optional(Sequence("int64"))])
def test_a_sample_that_is_appended_while_another_is_stored_is_refused(feature: Any) -> None:
    features = Features.of({"text": str, "more": feature})
    collector = BufferCollector(features)

    class Appends(list[int]):
        def __iter__(self) -> Iterator[int]:
            collector.append({"text": "inner" * 100, "more": [1]})
            return super().__iter__()

    for _ in range(200):
        with pytest.raises(RuntimeError, match="one sample at a time"):
            collector.append({"text": "outer", "more": Appends([1])})
        collector.truncate(0)


@needs_c
def test_an_error_while_buffers_grow_leaves_the_samples_before(monkeypatch: pytest.MonkeyPatch) -> None:
    features = Features.of({"x": int, "text": str})
    for moment in range(8):
        collector, calls = BufferCollector(features), itertools.count(-moment)
        resized = collect._resized

        def fails(*arguments: Any, calls: Any = calls, resized: Any = resized) -> Any:
            if next(calls) == 0:
                raise MemoryError
            return resized(*arguments)

        kept = []
        with monkeypatch.context() as patch:
            patch.setattr(collect, "_resized", fails)
            for number in range(300):
                try:
                    collector.append({"x": number, "text": str(number) * 20})
                    kept.append(number)
                except MemoryError:
                    collector.truncate(len(kept))
        assert len(kept) == 299
        expected = [{"x": number, "text": str(number) * 20} for number in kept]
        assert batch_of(collector, features).to_pylist() == expected


@needs_c
def test_large_samples_get_no_room_for_many_more() -> None:
    features = Features.of({"x": Array("uint8", (1 << 22,))})
    collector = BufferCollector(features)
    collector.append({"x": np.zeros(1 << 22, np.uint8)})
    batch_of(collector, features)
    assert collector._columns[0].data.size == 0
    collector.append({"x": np.zeros(1 << 22, np.uint8)})
    assert collector._columns[0].data.size == 1 << 22


@needs_c
def test_a_sample_that_is_appended_while_another_is_converted_is_refused() -> None:
    class Appends:
        def __bytes__(self) -> bytes:
            collector.append({"x": b"z" * 9000})
            return b""

    collector = BufferCollector(Features.of({"x": bytes}))
    column = collector._columns[0]
    column.convert = bytes
    with pytest.raises(RuntimeError, match="one sample at a time"):
        collector.append({"x": Appends()})
    assert collector.field == "x"


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_append_after_extend_is_not_one_of_the_iterator(kind: type[Any]) -> None:
    collector = kind(Features.of({"x": "int8"}))
    assert not collector.extend(iter([{"x": 1}]), 0, 1 << 20, 100, dict)
    with pytest.raises(SchemaError):
        collector.append({"x": "text"})
    assert not collector.outside and collector.field == "x"


@needs_c
class TestUnsafeCalls:
    """The C object refuses what would read or write outside of its buffers."""

    def kernel(self) -> Any:
        plan = ("x", collect_kernel.TEXT, None, (), 1, 1, (), 0, 0, False)
        return collect_kernel.Collector([plan], np.ndarray)

    def test_a_sample_before_there_are_buffers(self) -> None:
        assert self.kernel().append({"x": "a"}) == 2  # field 0 is full

    def test_commit_of_a_sample_that_is_not_being_stored(self) -> None:
        with pytest.raises(RuntimeError, match="one sample at a time"):
            self.kernel().commit({})

    def test_commit_without_room(self) -> None:
        kernel, sample = self.kernel(), {"x": "a"}
        assert kernel.append(sample) == 2
        with pytest.raises(IndexError):
            kernel.commit(sample)

    @pytest.mark.parametrize("offsets", [np.zeros(2, np.int64), np.full(4, 9, np.int64), np.full(4, -1, np.int64)])
    def test_buffers_that_are_too_small(self, offsets: Any) -> None:
        kernel = self.kernel()
        kernel.set_buffers(0, np.zeros(8, np.uint8), offsets, None)
        with pytest.raises(ValueError, match="expected buffers for 3 rows in field 0"):
            kernel.set_rows(0, 3)
        assert kernel.append({"x": "a"}) == 2

    def test_plans_that_make_no_sense(self) -> None:
        fine = ("x", collect_kernel.FIXED, np.dtype("f4"), (), 4, 8, (2,), 0, 0, False)
        collect_kernel.Collector([fine], np.ndarray)
        for wrong in [
            (*fine[:5], 4, *fine[6:]),
            (*fine[:6], (-2,), *fine[7:]),
            (*fine[:6], (1,) * 17, *fine[7:]),
            fine[:5],
        ]:
            with pytest.raises((ValueError, TypeError)):
                collect_kernel.Collector([wrong], np.ndarray)
        with pytest.raises(TypeError):
            collect_kernel.Collector(["x"], np.ndarray)
