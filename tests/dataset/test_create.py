"""Writing: given and inferred schemas, modes, and all-or-nothing publishing."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import PIL.Image
import pytest

import shardex as sx
from shardex.errors import (
    AlreadyExistsError,
    ArgumentError,
    ClosedError,
    FormatError,
    SchemaError,
    ShardexError,
    StaleIndexError,
    UnknownFormatError,
)
from shardex.features import Feature
from tests.formats.cases import WITH_BORDERS, kind

each_format = pytest.mark.parametrize("format", WITH_BORDERS)


@pytest.fixture
def schema(format: str) -> Any:
    return kind(format).schema


@pytest.fixture
def sample(format: str) -> Any:
    return kind(format).sample(1)


def test_append_takes_keywords_and_mappings(tmp_path: Path) -> None:
    with sx.create(tmp_path / "d", {"x": int, "s": str}) as out:
        out.append(x=1, s="a")
        out.append({"x": 2}, s="b")
        out.append(sx.DictSample(x=3, s="c"))
        assert out.samples == 3
    assert [s.x for s in sx.open(tmp_path / "d")] == [1, 2, 3]


def test_a_schema_is_inferred_from_all_samples_in_memory(tmp_path: Path) -> None:
    samples = [{"x": np.zeros(k % 3, np.float32), "n": k if k % 2 else None, "s": "a"} for k in range(100)]
    ds = sx.write(tmp_path / "d", samples)
    assert str(ds.features) == "x float32[?], n int64 or none, s text"
    with pytest.raises(SchemaError, match=r"expected values of one kind, got text and int64 - at sample 70, field s"):
        sx.write(tmp_path / "e", [*samples[:70], {**samples[0], "s": 7}])
    assert not (tmp_path / "e").exists()


def test_a_class_is_a_schema(tmp_path: Path) -> None:
    class Weather:
        history: np.ndarray
        station: str
        note: str | None

    with sx.create(tmp_path / "d", Weather) as out:
        out.append(history=np.arange(3), station="a")
    assert sx.open(tmp_path / "d")[0] == {"history": np.arange(3), "station": "a", "note": None}


def test_appended_buffers_may_be_reused(tmp_path: Path) -> None:
    buffer, sample = np.zeros(3, np.float32), {"x": np.zeros(3, np.float32)}
    with sx.create(tmp_path / "d") as out:
        for k in range(200):
            buffer[:] = k
            sample["x"] = buffer
            out.append(sample)
    assert [s.x[0] for s in sx.open(tmp_path / "d")] == list(range(200))


@each_format
def test_path_that_is_no_utf8(tmp_path: Path, format: str, schema: Any, sample: Any) -> None:
    path = os.path.join(tmp_path, os.fsdecode(b"\xff\xfe"))
    for mode in ("create", "overwrite"):
        ds = sx.write(path, [sample] * 3, schema, format=format, mode=mode)
        assert len(ds) == len(list(ds)) == 3 and repr(ds)
    if kind(format).appends:
        assert len(sx.write(path, [sample] * 3, schema, format=format, mode="append")) == 6
    assert sx.verify(path) == []


@each_format
def test_error_inside_with_leaves_nothing(tmp_path: Path, format: str, schema: Any, sample: Any) -> None:
    def fail() -> None:
        with sx.create(tmp_path / "d", schema, format=format) as out:
            out.append(sample)
            raise RuntimeError("oops")

    with pytest.raises(RuntimeError, match="oops"):
        fail()
    assert list(tmp_path.iterdir()) == []


@each_format
def test_refused_sample_is_not_written(tmp_path: Path, format: str, schema: Any, sample: Any) -> None:
    with sx.create(tmp_path / "d", schema, format=format) as out:
        out.append(sample)
        with pytest.raises(SchemaError, match=r"expected .* got .* at sample 1"):
            out.append({name: object() for name in sample})
        with pytest.raises(SchemaError, match="at sample 1"):
            out.append({**sample, "unknown": 1})
        out.append(sample)
    assert len(sx.open(tmp_path / "d", format=format)) == 2


@each_format
def test_modes(tmp_path: Path, format: str, schema: Any, sample: Any) -> None:
    path = tmp_path / "d"
    assert len(sx.write(path, [sample] * 3, schema, format=format)) == 3
    with pytest.raises(AlreadyExistsError, match='pass mode="append" or mode="overwrite"'):
        sx.create(path, schema, format=format)
    reader = sx.open(path, format=format)
    first = reader[0]
    assert len(sx.write(path, [sample], schema, format=format, mode="overwrite")) == 1
    if format == "folder":  # its files are not mapped
        with pytest.raises(StaleIndexError, match="it has changed since"):
            reader.stored[0]
    else:
        assert reader[0] == first
    if not kind(format).appends:
        with pytest.raises(ArgumentError, match="append"):
            sx.create(path, schema, format=format, mode="append")
    else:
        assert len(sx.write(path, [sample] * 2, schema, format=format, mode="append")) == 3
    with pytest.raises(ArgumentError, match="expected mode to be one of create, append, overwrite, got 'w'"):
        sx.create(path, schema, format=format, mode="w")
    assert {p.name for p in tmp_path.iterdir()} == {"d"}, "nothing is left beside it"


@each_format
def test_overwriting_removes_nothing_else(tmp_path: Path, format: str, schema: Any, sample: Any) -> None:
    """A folder with files other than a dataset of the format is not replaced."""
    path = tmp_path / "project"
    (path / "src").mkdir(parents=True)
    (path / "src" / "thesis.txt").write_text("years of work")
    with pytest.raises((AlreadyExistsError, FormatError)):
        sx.write(path, [sample], schema, format=format, mode="overwrite")
    assert (path / "src" / "thesis.txt").read_text() == "years of work"
    assert [p.name for p in tmp_path.iterdir()] == ["project"]


@each_format
def test_an_empty_dataset_is_valid(tmp_path: Path, format: str, schema: Any, sample: Any) -> None:
    ds = sx.write(tmp_path / "d", [], schema, format=format)
    assert len(ds) == 0 and list(ds) == []
    with pytest.raises(IndexError):
        ds[0]


def test_append_after_close_raises(tmp_path: Path) -> None:
    out = sx.create(tmp_path / "d", {"x": int})
    out.append(x=1)
    out.close()
    out.close()
    with pytest.raises(ClosedError):
        out.append(x=2)


def test_unknown_formats_and_options(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormatError, match="got 'zip'"):
        sx.create(tmp_path / "d", {"x": int}, format="zip")
    with pytest.raises(ArgumentError, match="expected options of the format arrow"):
        sx.create(tmp_path / "d", {"x": int}, compresion="zstd")


def test_a_dataset_is_written_in_another_format(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "a", [{"x": np.arange(k), "s": str(k)} for k in range(10)])
    again = sx.write(tmp_path / "b", ds.shuffle(seed=1), format="parquet")
    assert list(again) == list(ds.shuffle(seed=1))


def test_misfit_among_first_samples_aborts_the_writer(tmp_path: Path) -> None:
    """The schema is inferred from the first samples; if one does not fit, all are refused instead of losing some."""
    out = sx.create(tmp_path / "d")
    for k in range(63):
        out.append(x=k, s="\ud800" if k == 3 else "ok")
    with pytest.raises(SchemaError, match="at sample 3, field s"):
        out.append(x=63, s="ok")
    for call in (out.close, lambda: out.append(x=1, s="ok")):
        with pytest.raises(ClosedError, match="was aborted; nothing was written"):
            call()
    assert list(tmp_path.iterdir()) == []


@each_format
def test_failed_close_leaves_nothing(tmp_path: Path, format: str, schema: Any, sample: Any) -> None:
    first, second = (sx.create(tmp_path / "d", schema, format=format) for _ in range(2))
    for out in (first, second):
        out.append(sample)
    first.close()
    with pytest.raises(AlreadyExistsError):
        second.close()
    assert [path.name for path in tmp_path.iterdir()] == ["d"]
    with pytest.raises(ClosedError):
        second.close()


def test_nested_buffers_may_be_reused(tmp_path: Path) -> None:
    buffer, raw = np.zeros(2), bytearray(2)
    with sx.create(tmp_path / "d") as out:
        for k in range(10):
            buffer[:], raw[0] = k, k
            out.append(deep={"v": [buffer]}, raw=memoryview(raw))
    assert [(s.deep["v"][0][0], s.raw[0]) for s in sx.open(tmp_path / "d")] == [(k, k) for k in range(10)]


def test_append_mode_uses_the_stored_schema(tmp_path: Path) -> None:
    for format in ("arrow", "parquet"):
        sx.write(tmp_path / format, [{"x": 1}, {"x": None}], format=format)
        assert [s.x for s in sx.write(tmp_path / format, [{"x": 3}], format=format, mode="append")] == [1, None, 3]
    with pytest.raises(AlreadyExistsError, match="expected shards of this format to append to"):
        sx.write(tmp_path / "arrow", [{"x": 1}], format="jsonl", mode="append")


def test_append_of_other_types_raises(tmp_path: Path) -> None:
    for odd in (5, None, [("x", 1)]):
        with pytest.raises(SchemaError, match="expected a sample as a mapping"):
            sx.write(tmp_path / "d", [{"x": 1}, odd], {"x": int})


def test_write_and_open_resolve_paths_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(sx.write("~/d", [{"x": 1}])) == 1 and (tmp_path / "d").is_dir()
    with pytest.raises(ShardexError, match="expected an address that begins with"):
        sx.create("gopher://bucket/d", {"x": int})


@pytest.mark.parametrize("format", ["arrow", "parquet", "tar", "bins", "jsonl"])
def test_lists_of_numbers_are_arrays(tmp_path: Path, format: str) -> None:
    samples = [{"t": [0.5] * k, "pair": [[k, 1]] * k, "words": ["a"] * k, "mixed": [k, "a", None]} for k in range(5)]
    features = {
        "t": sx.Array("float64", (None,)),
        "pair": sx.Array("int64", (None, 2)),
        "words": list[str],
        "mixed": sx.Json(),
    }
    ds = sx.write(tmp_path / "d", samples, format=format)
    if format in ("tar", "jsonl"):
        ds = sx.open(tmp_path / "d", schema=features)
    for found in (ds, sx.open(samples)):
        assert sx.Features({name: found.features[name] for name in features}) == sx.Features.of(features)
        assert found[3].t.tolist() == samples[3]["t"] and found[3].pair.shape == (3, 2)
        batch = next(found.ordered(5))
        assert batch["t"].lengths.tolist() == [0, 1, 2, 3, 4] and batch["words"][2] == ["a", "a"]
        assert found[0].pair.shape == (0, 2) and found[2].mixed == [2, "a", None]
        assert len(found.where("len(t) > 2 AND t[1] = 0.5 AND list_contains(words, 'a')")) == 2


def test_lists_in_json_lines_stay_lists(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", [{"t": [1.0, 2.0]}], format="jsonl")
    assert ds.features == sx.Features({"t": sx.Json()}) and ds[0].t == [1.0, 2.0]


# -- a writer that is dropped ---------------------------------------------------------------------------------------


def test_writer_that_is_dropped_warns(tmp_path: Path) -> None:
    def drop() -> None:
        sx.create(tmp_path / "d", {"x": int}).extend([{"x": 1}, {"x": 2}])

    with pytest.warns(UserWarning, match=r"d: expected the writer to be closed.*2 samples not written.*with block"):
        drop()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("out = sx.create('d')\nout.append(x=1)", "d: expected the writer to be closed.* 1 sample not written"),
        ("tx = sx.edit('old')\ntx.append(x=2)", "old: expected the transaction to be closed.* 1 sample appended not"),
    ],
)
def test_a_writer_that_is_open_when_the_program_ends_warns(tmp_path: Path, code: str, said: str) -> None:
    sx.write(tmp_path / "old", [{"x": 1}])
    done = subprocess.run(
        [sys.executable, "-c", f"import shardex as sx\n{code}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(said, done.stderr)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize("end", ["close", "abort", "with", "error", "empty", "refused"])
def test_writer_that_has_ended_does_not_warn(tmp_path: Path, end: str) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        _end_writer(tmp_path / "d", end)
        gc.collect()
    assert not found


def _end_writer(path: Path, end: str) -> None:
    match end:
        case "with":
            with sx.create(path, {"x": int}) as out:
                out.append(x=1)
        case "error":
            with pytest.raises(ZeroDivisionError), sx.create(path) as out:
                out.append(x=1 / 0)
        case "empty":
            sx.create(path, {"x": int})
        case "refused":
            with pytest.raises(ArgumentError):
                sx.create(path, {"x": int}, nonsense=1)
        case _:
            out = sx.create(path)
            out.append(x=1)
            getattr(out, end)()


def test_repr_says_what_a_writer_holds(tmp_path: Path) -> None:
    out = sx.create(tmp_path / "d")
    assert repr(out) == f"Writer({str(tmp_path / 'd')!r}, open)"
    out.append(x=1)
    assert repr(out) == f"Writer({str(tmp_path / 'd')!r}, open, 1 sample)"
    out.close()
    assert repr(out) == f"Writer({str(tmp_path / 'd')!r}, closed, 1 sample)"


_INFERRING = pytest.mark.parametrize("format", ["arrow", "jsonl", "csv", "tar", "parquet", "bins"])


@_INFERRING
def test_a_late_sample_of_another_kind(tmp_path: Path, format: str) -> None:
    samples = [*({"x": k} for k in range(100)), {"x": "a"}]
    with pytest.raises(SchemaError, match="expected values of one kind, got int64 and text - at sample 100, field x"):
        sx.write(tmp_path / "d", samples, format=format)
    with sx.create(tmp_path / "e", format=format) as out:
        out.extend(samples[:100])
        adds: list[Callable[[Any], None]] = [out.append, lambda one: out.extend(iter([one]))]
        adds.append(lambda one: out.extend({"x": [one["x"]]}))
        for add in adds:
            with pytest.raises(SchemaError, match=r"at sample 100, field x; the schema was inferred .* pass one that"):
                add({"x": "a"})
        out.append(x=100)
    assert [sample.x for sample in sx.open(tmp_path / "e", schema={"x": int}, format=format)] == list(range(101))
    with pytest.raises(SchemaError, match=r"field x$"):
        sx.write(tmp_path / "d", samples, {"x": int}, format=format)


def _by_append(path: Path, samples: list[Any], format: str) -> None:
    with sx.create(path, format=format) as out:
        for sample in samples:
            out.append(sample)


def _by_iterator(path: Path, samples: list[Any], format: str) -> None:
    sx.write(path, iter(samples), format=format)


def _by_lists(path: Path, samples: list[Any], format: str) -> None:
    with sx.create(path, format=format) as out:
        for begin in range(0, len(samples), 40):
            out.extend(samples[begin : begin + 40])


def _by_columns(path: Path, samples: list[Any], format: str) -> None:
    with sx.create(path, format=format) as out:
        for begin in range(0, len(samples), 40):
            some = samples[begin : begin + 40]
            names = dict.fromkeys(name for sample in some for name in sample)
            out.append_batch({name: [sample.get(name) for sample in some] for name in names})


def _by_list(path: Path, samples: list[Any], format: str) -> None:
    sx.write(path, samples, format=format)


_STREAMS = pytest.mark.parametrize("write", [_by_append, _by_iterator, _by_lists, _by_columns, _by_list])
_IMAGE = {mode: PIL.Image.new(mode, (2, 3), color) for mode, color in (("L", 5), ("RGB", (1, 2, 3)))}
_LATE: dict[str, tuple[Any, Any, str]] = {
    "float": (1, 2.5, "x float64"),
    "none": (1, None, "x int64 or none"),
    "int": (None, 7, "x int64 or none"),
    "list": ([], [1, 2], "x int64[?]"),
    "texts": ([], ["a", "b"], "x list of text"),
    "floats": ([1], [0.5, 2.5], "x float64[?]"),
    "shape": (np.zeros(2, "f4"), np.ones(3, "f4"), "x float32[?]"),
    "rank": (np.zeros(2, "f4"), np.ones((3, 1), "f4"), "x float32[...]"),
    "dtype": (np.zeros(2, "f4"), np.full(2, 0.1), "x float64[2]"),
    "number": (np.float32(0.5), 0.1, "x float64"),
    "image": (_IMAGE["L"], _IMAGE["RGB"], "x image"),
}


@_STREAMS
@pytest.mark.parametrize("late", _LATE)
def test_a_schema_fits_all_samples_of_a_stream(write: Any, tmp_path: Path, late: str) -> None:
    first, last, features = _LATE[late]
    samples = [{"n": k, "x": first} for k in range(100)] + [{"n": 100, "x": last}, {"n": 101, "x": first}]
    write(tmp_path / "d", samples, "arrow")
    ds = sx.open(tmp_path / "d")
    assert str(ds.features) == f"n int64, {features}"
    assert sx.verify(tmp_path / "d") == []
    assert [sample.n for sample in ds] == list(range(102))
    for row, expected in ((0, first), (99, first), (100, last), (101, first)):
        value = expected.convert("RGB") if isinstance(expected, PIL.Image.Image) else expected
        np.testing.assert_array_equal(np.asarray(ds[row].x), np.asarray(value))
    sx.write(tmp_path / "e", samples, ds.features)
    assert _content(tmp_path / "d") == _content(tmp_path / "e")


def _content(path: Path) -> list[bytes]:
    """The data files of a native dataset, in the order of its samples."""
    return [Path(name).read_bytes() for name in dict.fromkeys(sx.open(path).shards(slice(None)))]


@_INFERRING
@pytest.mark.parametrize("write", [_by_append, _by_list])
def test_streams_in_each_format(write: Any, tmp_path: Path, format: str) -> None:
    samples = [{"x": k, "s": f"text {k}"} for k in range(100)] + [{"x": 0.5, "s": "a"}, {"x": 3, "s": "b"}]
    write(tmp_path / "d", samples, format)
    schema = {"x": float, "s": str}
    ds = sx.open(tmp_path / "d", schema=schema, format=format)
    assert [(one.x, one.s) for one in ds] == [(one["x"], one["s"]) for one in samples]
    sx.write(tmp_path / "e", samples, schema, format=format)
    files = [[path.read_bytes() for path in sorted((tmp_path / one).glob("*-0*"))] for one in "de"]
    assert files[0] == files[1]
    assert {path.name for path in tmp_path.iterdir()} == {"d", "e"}, "nothing is left beside them"


def test_new_fields_of_a_stream(tmp_path: Path) -> None:
    """Many samples that each need wider features: those before them are written again only as often as it is worth."""
    samples = [{"n": k, f"late_{k}": k} if k >= 64 else {"n": k} for k in range(264)]
    ds = sx.write(tmp_path / "d", iter(samples))
    assert len(ds.features) == 201
    assert [sample.n for sample in ds] == list(range(264))
    assert [ds[k][f"late_{k}"] for k in range(64, 264)] == list(range(64, 264))
    assert ds[263].late_64 is None


def test_an_aborted_stream_leaves_nothing(tmp_path: Path) -> None:
    out = sx.create(tmp_path / "d")
    for value in (1, 2.5, None):
        out.extend({"x": value} for _ in range(200))
    out.abort()
    assert list(tmp_path.iterdir()) == []


def test_an_appended_stream_has_the_schema_of_the_dataset(tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [{"x": 1}])
    with pytest.raises(SchemaError, match="expected int64, got float"):
        sx.write(tmp_path / "d", iter([{"x": 0.5}]), mode="append")


@pytest.mark.parametrize("write", [_by_append, _by_list])
def test_integers_that_floats_do_not_hold(write: Any, tmp_path: Path) -> None:
    for large, late in ((2**53 + 1, 0.5), (0.5, 2**53 + 1)):
        with pytest.raises(SchemaError, match="float64 holds, got 9007199254740993, which it would round"):
            write(tmp_path / "d", [*({"x": large} for _ in range(100)), {"x": late}], "arrow")
    assert list(tmp_path.iterdir()) == []


@_STREAMS
@pytest.mark.parametrize("value", [None, []])
def test_a_field_without_values_is_said(write: Any, value: Any, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"the field x has no values in all 100 samples.* stored as json.*schema"):
        write(tmp_path / "d", [{"n": 1, "x": value}] * 100, "arrow")
    assert sx.open(tmp_path / "d")[0] == {"n": 1, "x": value}


@pytest.mark.parametrize("format", ["jsonl", "csv"])
def test_none_that_is_appended_has_the_type_of_the_field(format: str, tmp_path: Path) -> None:
    sx.write(tmp_path / "d", [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}], format=format)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ds = sx.write(tmp_path / "d", [{"a": None, "b": "z"}], format=format, mode="append")
    assert str(ds.features).startswith("a int64 or none, b text") and [one.a for one in ds] == [1, 2, None]
    with pytest.warns(UserWarning, match="the field c has no values"):
        sx.write(tmp_path / "e", [{"a": 1, "c": None}], format="jsonl", mode="append")


COLUMNS: dict[str, Any] = {
    "x": np.arange(600, dtype=np.float32).reshape(200, 3),
    "n": np.arange(200) % 7,
    "s": [f"text {k}" for k in range(200)],
}


class TestExtendByColumns:
    """`extend` takes a dict of columns, and what it writes is what `append` writes."""

    schema: ClassVar[dict[str, Any]] = {"x": sx.Array("float32", (3,)), "n": int, "s": str}

    def samples(self) -> list[dict[str, Any]]:
        return [{name: column[k] for name, column in COLUMNS.items()} for k in range(200)]

    @pytest.mark.parametrize("schema", [schema, None], ids=["schema", "inferred"])
    @pytest.mark.parametrize("format", ["arrow", "jsonl", "parquet"])
    def test_same_samples(self, tmp_path: Path, schema: Any, format: str) -> None:
        with sx.create(tmp_path / "a", schema, format=format) as out:
            out.extend(COLUMNS)
            assert out.samples == 200
            out.append(self.samples()[0])
            out.append_batch(**{name: column[:50] for name, column in COLUMNS.items()})
            out.append_batch(next(sx.open(COLUMNS).ordered(10)))
        with sx.create(tmp_path / "b", schema, format=format) as out:
            out.extend([*self.samples(), self.samples()[0], *self.samples()[:50], *self.samples()[:10]])
        assert list(sx.open(tmp_path / "a", format=format)) == list(sx.open(tmp_path / "b", format=format))

    def test_arrays_may_be_reused(self, tmp_path: Path) -> None:
        array = np.zeros((100_000, 3), np.float32)
        with sx.create(tmp_path / "a", {"x": self.schema["x"]}) as out:
            for number in range(5):
                array[:] = number
                out.extend({"x": array})
        assert [row[0] for row in sx.open(tmp_path / "a").read(np.arange(5) * 100_000 + 50_000)["x"].tolist()] == [
            *range(5)
        ]

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            ({**COLUMNS, "n": COLUMNS["n"] + 0.5}, "expected int64, got float 0.5 - at sample 1, field n"),
            ({**COLUMNS, "y": COLUMNS["n"]}, "expected the fields x, n, s, got 'y' too"),
            ({"x": COLUMNS["x"], "n": COLUMNS["n"]}, "expected text, got .*at sample 1, field s"),
            ({**COLUMNS, "n": COLUMNS["n"][:9]}, "expected .*"),
        ],
    )
    def test_errors_name_the_sample_and_write_nothing(self, tmp_path: Path, columns: Any, message: str) -> None:
        with sx.create(tmp_path / "a", self.schema) as out:
            out.append(self.samples()[0])
            with pytest.raises(sx.ShardexError, match=message):
                out.extend(columns)
            assert out.samples == 1
        assert len(sx.open(tmp_path / "a")) == 1


def test_a_generator_of_views_of_one_array(tmp_path: Path) -> None:
    """The array of a sample may be overwritten as soon as the next sample is asked for."""
    shared = np.zeros(5000, np.int32)

    def samples() -> Iterator[dict[str, Any]]:
        for k in range(1000):
            shared[:] = k
            yield {"x": shared[: k + 1], "k": k}

    ds = sx.write(tmp_path / "a", samples(), {"x": sx.Array("int32", (None,)), "k": int}, progress=False)
    assert all(sample["x"].tolist() == [k] * (k + 1) for k, sample in enumerate(ds))


def test_an_error_of_a_generator_leaves_the_writer_open(tmp_path: Path) -> None:
    def samples() -> Iterator[dict[str, Any]]:
        yield from ({"x": k} for k in range(70))
        raise ZeroDivisionError

    with sx.create(tmp_path / "a", {"x": int}) as out:
        with pytest.raises(ZeroDivisionError):
            out.extend(samples())
        assert out.samples == 70
        with pytest.raises(SchemaError, match="expected int64, got str 'a' - at sample 72, field x"):
            out.extend([{"x": 70}, {"x": 71}, {"x": "a"}, {"x": 72}])
        assert out.samples == 72
        out.append(x=72)
    assert [sample.x for sample in sx.open(tmp_path / "a")] == list(range(73))


CASTS = [
    (sx.Array("float32", (2,)), [np.array([0.1, 1]), np.array([-np.inf, np.nan])], np.array([1, 1e39])),
    (sx.Array("uint8", (2,)), [np.array([0, 255]), np.array([1, 2], "u4")], np.array([0, 256])),
    (sx.Array("int16", (None,)), [np.arange(3), np.array([], "i8")], np.array([1 << 15])),
    (sx.Array("int16", (None, None)), [np.arange(6).reshape(2, 3), np.ones((1, 1), "i8")], np.array([[1.0]])),
    (sx.Array("complex64", (1,)), [np.array([1 + 2j]), np.array([0.5])], np.array([1e39j])),
    (sx.Value("float32"), [np.float64(0.1), np.float64(3.4028235e38)], np.float64(1e39)),
    (sx.Value("uint8"), [np.int64(255), np.int64(0)], np.int64(-1)),
    (sx.Value("int8"), [np.int64(1), np.int64(2)], np.float64(1)),
]


def _append(path: Path, feature: Feature, values: list[Any]) -> None:
    with sx.create(path, {"x": feature}) as out:
        for value in values:
            out.append(x=value)


def _extend(path: Path, feature: Feature, values: list[Any]) -> None:
    with sx.create(path, {"x": feature}) as out:
        out.extend([{"x": value} for value in values])


def _columns(path: Path, feature: Feature, values: list[Any]) -> None:
    with sx.create(path, {"x": feature}) as out:
        out.extend({"x": np.stack(values) if len({np.shape(one) for one in values}) == 1 else values})


def _dataset(path: Path, feature: Feature, values: list[Any]) -> None:
    dtype = np.result_type(*values)
    sx.write(path, sx.open([{"x": np.asarray(value, dtype)} for value in values]), {"x": feature})


def _parquet(path: Path, feature: Feature, values: list[Any]) -> None:
    sx.write(path, [{"x": value} for value in values], {"x": feature}, format="parquet")


def _edit(path: Path, feature: Feature, values: list[Any]) -> None:
    sx.write(path, [{"x": feature.blank()}] * len(values), {"x": feature})
    with sx.edit(path) as tx:
        tx.extend([{"x": value} for value in values])
        tx.delete(range(len(values)))


def _update(path: Path, feature: Feature, values: list[Any]) -> None:
    sx.write(path, [{"x": feature.blank()}] * len(values), {"x": feature})
    with sx.edit(path) as tx:
        for row, value in enumerate(values):
            tx.update(row, x=value)


def _add_field(path: Path, feature: Feature, values: list[Any]) -> None:
    sx.write(path, [{"n": k} for k in range(len(values))])
    with sx.edit(path) as tx:
        tx.add_field("x", feature, values)


@pytest.mark.parametrize(("feature", "good", "bad"), CASTS, ids=[str(one[0]) for one in CASTS])
@pytest.mark.parametrize("way", [_append, _extend, _columns, _dataset, _parquet, _edit, _update, _add_field])
def test_a_declared_dtype_casts_in_the_same_way_everywhere(
    way: Callable[[Path, Feature, list[Any]], None], feature: Feature, good: list[Any], bad: Any, tmp_path: Path
) -> None:
    way(tmp_path / "good", feature, good)
    fitted = [np.asarray(one).astype(feature.blank().dtype) for one in good]
    for found, expected in zip(sx.open(tmp_path / "good").select("x"), fitted, strict=True):
        assert np.asarray(found.x).dtype == (expected.dtype if expected.ndim else type(expected.item()))
        np.testing.assert_array_equal(found.x, expected)
    with pytest.raises(SchemaError, match=r"expected .*, got .*field x"):
        way(tmp_path / "bad", feature, [good[0], bad])


def test_samples_in_the_place_of_the_path_are_refused() -> None:
    samples: Any = [{"x": 1}]
    for call in (lambda: sx.write(samples, "d"), lambda: sx.create(samples), lambda: sx.edit(samples)):
        with pytest.raises(ArgumentError, match="expected a path or a URL as the first argument, got list"):
            call()
