"""Writing in parts: the same result for every number of workers, after errors and kills; functions of all kinds."""

from __future__ import annotations

import hashlib
import inspect
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.dataset.write_job import Began, part_rows, write_in_parts
from shardex.dataset.write_steps import WriteSteps
from shardex.errors import (
    AlreadyExistsError,
    ArgumentError,
    CommitConflict,
    DuplicateKeyError,
    FormatError,
    NotFoundError,
    SchemaError,
    ShardexError,
)
from shardex.formats import format_named
from shardex.jobs import JobFolder
from tests.formats.cases import WITH_BORDERS, kind
from tests.waiting import becomes_true

OF_EACH_KIND = ("arrow", "tar", "bins")
"""What `make test` writes in processes: columns, records in numbered shards, and parts that are written again."""
long = pytest.mark.long


def content(folder: Path) -> dict[str, str]:
    """Digest of each data file; indexes and manifests have times in them."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not name.startswith((".shardex", "_shardex")) and name != "index.sqlite":
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def numbers(count: int = 500) -> sx.Dataset:
    return sx.open([{"n": k, "x": np.full(8, k, np.float32), "s": f"t{k}"} for k in range(count)])


def double(sample: Any) -> dict[str, Any]:
    return {"n": 2 * sample.n, "x": sample.x + 1, "s": sample.s}


def minus(sample: Any) -> dict[str, Any]:
    return {"n": -sample.n, "x": sample.x + 1, "s": sample.s}


def for_format(format: str) -> Any:
    """A function whose results the format can hold."""
    make = kind(format).sample
    return lambda sample: make(sample.n)


@pytest.mark.parametrize("format", WITH_BORDERS)
def test_same_files_in_parts_and_in_threads(tmp_path: Path, format: str) -> None:
    same_files(tmp_path, format, {"one": {}, "a": {"workers": 1}, "b": {"executor": "threads"}})


@pytest.mark.parametrize("format", [pytest.param(n, marks=() if n in OF_EACH_KIND else long) for n in WITH_BORDERS])
def test_same_files_for_every_number_of_workers(tmp_path: Path, format: str) -> None:
    same_files(tmp_path, format, {"one": {}, "a": {"workers": 2}})


def same_files(tmp_path: Path, format: str, runs: dict[str, Any]) -> None:
    source, results = numbers(), []
    for name, arguments in runs.items():
        options: Any = {"transform": for_format(format), "format": format, **kind(format).write, **arguments}
        out = sx.write(tmp_path / name, source, kind(format).schema, **options)
        assert len(out) == 500
        results.append(content(tmp_path / name))
    assert all(one == results[0] for one in results)
    assert sorted(os.listdir(tmp_path)) == sorted(runs)


def test_fingerprints_of_the_results_are_equal(tmp_path: Path) -> None:
    made = [sx.write(tmp_path / str(n), numbers(), transform=double, workers=n) for n in (1, 2)]
    assert made[0].fingerprint == made[1].fingerprint
    assert sx.verify(tmp_path / "2") == []


@pytest.mark.parametrize("format", ["arrow", "parquet", "jsonl", "bins"])
def test_plain_conversion_is_the_same_as_a_stream(tmp_path: Path, format: str) -> None:
    sx.write(tmp_path / "a", numbers(), format=format)
    sx.write(tmp_path / "b", numbers(), format=format, workers=1)
    a, b = sx.open(tmp_path / "a"), sx.open(tmp_path / "b")
    assert a.features == b.features
    assert [dict(one) for one in a.select("n", "s")] == [dict(one) for one in b.select("n", "s")]


@pytest.mark.parametrize("format", ["arrow", "tokens"])
def test_copies_have_the_metadata_of_their_source(tmp_path: Path, format: str) -> None:
    samples = [{"tokens": np.arange(k, dtype=np.uint16)} for k in range(5)]
    ds = sx.write(tmp_path / "a", samples, format="tokens", metadata={"eos": 3})
    assert sx.write(tmp_path / "b", ds, format=format).metadata == {"eos": 3}
    assert sx.write(tmp_path / "c", ds[1:], filter=lambda s: len(s.tokens) > 2, format=format).metadata == {"eos": 3}
    assert sx.write(tmp_path / "d", ds, format=format, metadata={"eos": 4}).metadata == {"eos": 4}
    assert sx.write(tmp_path / "e", ds, format=format, transform=lambda s: {"tokens": s.tokens + 1}).metadata == {}
    assert sx.write(tmp_path / "d", ds, format=format, mode="append").metadata == {"eos": 4}
    assert sx.write(tmp_path / "f", ds, format="parquet").metadata == {}


def test_shards_by_rows_and_by_bytes(tmp_path: Path) -> None:
    source = numbers(1000)
    sx.write(tmp_path / "rows", source, format="jsonl", shard_rows=300, workers=2)
    lines = [len(path.read_text().splitlines()) for path in sorted((tmp_path / "rows").glob("*.jsonl"))]
    assert lines == [300, 300, 300, 100]
    sx.write(tmp_path / "bytes", source, transform=double, format="jsonl", shard_size=4000)
    sizes = [path.stat().st_size for path in (tmp_path / "bytes").glob("*.jsonl")]
    assert len(sizes) > 10
    assert max(sizes) <= 4000
    assert [one.n for one in sx.open(tmp_path / "bytes")] == [2 * k for k in range(1000)]


@pytest.mark.parametrize("mapped", [False, True])
def test_fields_that_are_not_read_do_not_make_parts_smaller(tmp_path: Path, mapped: bool) -> None:
    images = np.zeros((300, 1 << 18), np.uint8)  # 75 MiB
    source = sx.open({"image": images, "label": np.arange(300)}).select("label").rename(label="n")
    if mapped:
        source = source.map(lambda sample: sample)
    assert part_rows(source, WriteSteps(), {}) == (64 if mapped else 8 << 20), "parts of 64 samples"
    sx.write(tmp_path / "d", source)
    assert len(content(tmp_path / "d")) == 1


@pytest.mark.parametrize("format", ["arrow", "parquet", "tar", "jsonl", "csv"])
def test_small_parts_of_functions_become_one_shard(tmp_path: Path, format: str) -> None:
    source, schema = sx.open({"n": np.arange(5000)}), {"n": int, "s": str}
    results = [{"n": 2 * k, "s": f"t{k}"} for k in range(5000)]
    for name, workers in (("a", 1), ("b", 2)):
        sx.write(tmp_path / name, source, schema, transform=lambda s: results[s.n], format=format, workers=workers)
        made = sx.open(tmp_path / name, schema=schema, format=format)
        assert [dict(one) for one in made.select("n", "s")] == results
        assert len(set(made.shards(slice(None)))) == 1
    assert content(tmp_path / "a") == content(tmp_path / "b")
    made = sx.write(tmp_path / "c", source, transform=lambda s: results[s.n], shard_rows=500)
    assert len(set(made.shards(slice(None)))) == 10, "as the caller wants"


def test_small_parts_are_joined_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = str(tmp_path / "log")

    def function(sample: Any) -> dict[str, Any]:
        with open(log, "a") as out:
            out.write(".")
        return {"n": -sample.n}

    def fail(folder: JobFolder, path: str, part: Any) -> None:
        raise OSError("no space")

    source, write = sx.open({"n": np.arange(500)}), partial(sx.write, schema={"n": int}, transform=function)
    keep = JobFolder.keep
    monkeypatch.setattr(JobFolder, "keep", lambda *args: (keep if "whole" not in args[1] else fail)(*args))
    with pytest.raises(OSError, match="no space"):
        write(tmp_path / "d", source)
    monkeypatch.undo()
    assert write(tmp_path / "d", source)["n"][:].tolist() == [-k for k in range(500)]
    assert Path(log).read_text() == "." * 500 and sorted(os.listdir(tmp_path)) == ["d", "log"]


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=long)])
@pytest.mark.parametrize("format", ["arrow", "parquet", "jsonl"])
def test_parts_that_infer_different_features(tmp_path: Path, format: str, workers: int) -> None:
    def function(sample: Any) -> dict[str, Any]:
        k = sample.n
        late = {"late": "a"} if k == 700 else {}
        empty = [] if k < 800 else ["a"]
        return {"n": 0.5 if k == 300 else k, "s": None if k == 600 else f"t{k}", "empty": empty, **late}

    ds = sx.write(tmp_path / "d", numbers(1000), transform=function, format=format, workers=workers)
    schema = {"n": float, "s": str | None, "empty": sx.Sequence(str), "late": str | None}
    if format != "jsonl":
        assert dict(ds.features) == dict(sx.Features.of(schema))
    ds = sx.open(tmp_path / "d", schema=schema)
    expected = [{"late": None, **function(one)} for one in numbers(1000)]
    assert [dict(one) for one in ds] == [{name: one[name] for name in ds.fields} for one in expected]
    if format != "jsonl":  # whose writer keeps 1 and 1.0 apart
        sx.write(tmp_path / "e", numbers(1000), schema, transform=function, format=format)
        assert content(tmp_path / "d") == content(tmp_path / "e")


def test_parts_of_different_kinds(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"got str .*at .*sample 400.*; give a schema that fits all results"):
        sx.write(tmp_path / "d", numbers(), transform=lambda s: {"n": "a" if s.n == 400 else s.n})
    with pytest.raises(SchemaError, match=r"expected values of one kind, got int64 .*and text .*- at field n"):
        sx.write(tmp_path / "e", numbers(), transform=lambda s: {"n": {100: 1, 400: "a"}.get(s.n)})


def test_fields_of_parts_without_values_are_said(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="the field x has no values in all 500 samples") as found:
        sx.write(tmp_path / "d", numbers(), transform=lambda s: {"n": s.n, "x": None}, workers=1)
    assert len(found) == 1


def test_filter_and_functions_that_return_several_samples(tmp_path: Path) -> None:
    def words(sample: Any) -> Iterator[dict[str, Any]]:
        for number in range(sample.n % 3):
            yield {"n": sample.n, "word": f"{sample.s}-{number}"}

    kept = sx.write(tmp_path / "a", numbers(), filter=lambda sample: sample.n % 10 == 3, workers=1)
    assert [one.n for one in kept] == list(range(3, 500, 10))
    assert kept.features == numbers().features
    many = sx.write(tmp_path / "b", numbers(), transform=words, workers=2, shard_rows=50)
    assert [one.word for one in many] == [f"t{k}-{number}" for k in range(500) for number in range(k % 3)]
    both = sx.write(tmp_path / "c", numbers(), filter=lambda sample: sample.n == 5, transform=words)
    assert [one.word for one in both] == ["t5-0", "t5-1"]


@pytest.mark.parametrize("format", WITH_BORDERS)
def test_nothing_is_kept(tmp_path: Path, format: str) -> None:
    nothing: Any = {"filter": lambda sample: False, "transform": for_format(format), "format": format}
    out = sx.write(tmp_path / "d", numbers(), kind(format).schema, **nothing)
    assert len(out) == 0


def test_empty_source(tmp_path: Path) -> None:
    source = sx.write(tmp_path / "a", [], {"x": int})
    assert len(sx.write(tmp_path / "b", source, workers=1)) == 0
    assert sx.open(tmp_path / "b").features == source.features
    assert len(sx.write(tmp_path / "c", [], {"x": int}, transform=double, workers=2)) == 0


def test_batches(tmp_path: Path) -> None:
    def batch(batch: Any) -> dict[str, Any]:
        return {"n": np.repeat(batch.n, 2), "size": np.full(2 * len(batch), len(batch))}

    for workers in (1, 2):
        folder = tmp_path / str(workers)
        out = sx.write(folder, numbers(), transform=batch, batched=True, batch_size=50, shard_rows=120, workers=workers)
        assert [one.n for one in out] == [k for k in range(500) for _ in range(2)]
        assert {one.size for one in out} == {50, 20}
    assert content(tmp_path / "1") == content(tmp_path / "2")
    odd = sx.write(tmp_path / "odd", numbers(), filter=lambda batch: batch.n % 2 == 1, batched=True)
    assert [one.n for one in odd] == list(range(1, 500, 2))


@pytest.mark.parametrize("format", ["arrow", "parquet", "jsonl", "tar", "bins", "columns_tar"])
def test_function_that_returns_the_same_array_again(tmp_path: Path, format: str) -> None:
    reused = np.empty((64, 8), np.float32)

    def fill(batch: Any) -> dict[str, Any]:
        reused[: len(batch)] = batch.x
        return {"x": reused[: len(batch)]}

    made = sx.write(tmp_path / "d", numbers(200), transform=fill, batched=True, batch_size=64, format=format)
    field = "x"
    assert [float(np.asarray(sample[field])[0]) for sample in made] == list(range(200))


def test_filter_that_keeps_nothing_of_a_batch(tmp_path: Path) -> None:
    out = sx.write(
        tmp_path / "d",
        numbers(),
        transform=lambda batch: {"most": [int(batch.n.max())]},  # not possible for no samples
        filter=lambda batch: batch.n > 150,
        batched=True,
        batch_size=100,
    )
    assert [one.most for one in out] == [199, 299, 399, 499]


def test_mask_of_a_batch_is_checked(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"expected 256 booleans from .* got int64"):
        sx.write(tmp_path / "d", numbers(), filter=lambda batch: batch.n % 2, batched=True)


def test_features_that_are_passed_on_stay(tmp_path: Path) -> None:
    schema = {"label": sx.ClassLabel(["a", "b"]), "n": sx.Value("int8")}
    source = sx.write(tmp_path / "a", [{"label": k % 2, "n": k} for k in range(100)], schema)
    out = sx.write(tmp_path / "b", source, transform=lambda s: [{"label": s.label, "n": s.n, "m": s.n * 1.5}] * 2)
    assert out.features["label"] == source.features["label"]
    assert out.features["n"] == source.features["n"]
    assert len(out) == 200


@sx.packable
class Named:
    n: int
    name: str = "none"


@pytest.mark.parametrize("batched", [False, True])
def test_fields_of_results_are_those_of_map(tmp_path: Path, batched: bool) -> None:
    def single(sample: Any) -> dict[str, Any]:
        return {"n": sample.n, "small": np.int8(1), "half": np.float16(0.5), "x": sample.x[:2]}

    def many(batch: Any) -> dict[str, Any]:
        ones = np.ones(len(batch))
        return {"n": batch.n, "small": ones.astype(np.int8), "half": ones.astype(np.float16), "x": batch.x[:, :2]}

    function: Any = many if batched else single
    out = sx.write(tmp_path / "d", numbers(), transform=function, batched=batched)
    assert out.features == (numbers().map(many, batched=True) if batched else numbers().map(single)).features
    assert str(out.features) == "n int64, small int8, half float16, x float32[2]"


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_function_that_changes_its_argument(tmp_path: Path, batched: bool, on_error: str) -> None:
    def change(sample: Any) -> Any:
        sample["words"].append("b")
        sample["more"]["c"] = 1
        sample["x"] += 1
        return sample

    def change_all(batch: Any) -> Any:
        for words, x in zip(batch.words, batch.columns["x"], strict=True):
            words.append("b")
            np.add(x, 1, out=x)
        return batch

    given: list[dict[str, Any]] = [{"words": ["a"], "more": {}, "x": np.zeros((1, k % 3 + 1))} for k in range(40)]
    schema = {"words": list[str], "more": sx.Json(), "x": sx.Array("float64", (None, None))}
    options: dict[str, Any] = {"transform": change_all if batched else change, "batched": batched, "on_error": on_error}
    for number, wanted in enumerate((None, schema)):
        out = sx.write(tmp_path / str(number), given, wanted, **options)
        assert [list(one.words) for one in out] == [["a", "b"]] * 40, (
            "the first samples are used to find the fields too"
        )
        assert {float(one.x.max()) for one in out} == {1.0}
    assert given[0] == {"words": ["a"], "more": {}, "x": np.zeros((1, 1))}


def test_typed_samples(tmp_path: Path) -> None:
    source = numbers().select("n")
    typed = sx.write(tmp_path / "a", source, transform=lambda sample: Named(n=sample.n), workers=1)
    assert typed[3].name == "none"
    again = sx.write(tmp_path / "b", sx.open(tmp_path / "a", Named), transform=lambda s: Named(n=s.n, name=f"{s.n}"))
    assert again[4].name == "4"
    given = sx.write(tmp_path / "c", source, Named, transform=lambda sample: {"n": sample.n}, workers=1)
    assert given[0].name == "none"


# -- errors -------------------------------------------------------------------------------------------------------


def fails_at_333(sample: Any) -> dict[str, Any]:
    if sample.n == 333:
        raise ZeroDivisionError("no")
    return double(sample)


@pytest.mark.parametrize("workers", [1, 2])
def test_exception_names_sample_and_function_and_keeps_what_is_finished(tmp_path: Path, workers: int) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        sx.write(tmp_path / "d", numbers(), transform=fails_at_333, workers=workers, shard_rows=10)
    notes = "\n".join(caught.value.__notes__)
    assert "fails_at_333" in notes
    assert "at sample 333" in notes
    assert "parts are finished and kept in" in notes
    assert not (tmp_path / "d").exists()
    (job,) = os.listdir(tmp_path)
    assert len(os.listdir(tmp_path / job / "done")) >= 33


def test_run_that_raised_is_continued_without_the_sample(tmp_path: Path) -> None:
    def fails(sample: Any) -> dict[str, Any]:
        os.write(log, b".")
        return fails_at_333(sample)

    log = os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    with pytest.raises(ZeroDivisionError):
        sx.write(tmp_path / "d", numbers(), transform=fails, shard_rows=10)
    before = os.path.getsize(tmp_path / "log")
    with pytest.warns(UserWarning, match="1 of 500 samples"):
        out = sx.write(tmp_path / "d", numbers(), transform=fails, shard_rows=10, on_error="skip")
    os.close(log)
    assert os.path.getsize(tmp_path / "log") - before < 250, "the first 330 samples are kept"
    assert [one.n for one in out] == [2 * k for k in range(500) if k != 333]


def test_job_that_cannot_be_continued_keeps_nothing(tmp_path: Path) -> None:
    numbered = (k for k in range(10**6))  # a generator: nobody knows what it yields in the next run

    def fails(sample: Any) -> dict[str, Any]:
        return {**fails_at_333(sample), "number": next(numbered)}

    with pytest.raises(ZeroDivisionError) as caught:
        sx.write(tmp_path / "d", numbers(), transform=fails, shard_rows=10)
    assert "cannot be continued, because it uses" in "\n".join(caught.value.__notes__)
    assert os.listdir(tmp_path) == []


def test_first_part_fails_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        sx.write(
            tmp_path / "d",
            numbers().skip(333),
            {"n": int, "x": sx.Array("float32", (8,)), "s": str},
            transform=fails_at_333,
        )
    assert os.listdir(tmp_path) == []


def test_parts_are_kept_if_an_earlier_one_fails(tmp_path: Path) -> None:
    def fails_late(sample: Any) -> dict[str, Any]:
        if sample.n == 19:
            assert becomes_true(lambda: finished_parts(tmp_path / "d") > 0)
            raise ZeroDivisionError("no")
        return {"n": sample.n}

    with pytest.raises(ZeroDivisionError) as caught:
        sx.write(
            tmp_path / "d", numbers(), {"n": int}, transform=fails_late, executor="threads", workers=2, shard_rows=20
        )
    assert "parts are finished and kept in" in "\n".join(caught.value.__notes__)
    assert finished_parts(tmp_path / "d") > 0


@pytest.mark.parametrize("format", ["arrow", "parquet"])
def test_fields_of_the_target_change_before_a_job_is_continued(tmp_path: Path, format: str) -> None:
    def fails(sample: Any) -> dict[str, Any]:
        return {"n": sample.n if (tmp_path / "there").exists() else fails_at_333(sample)["n"]}

    def target(dtype: str) -> None:
        sx.write(tmp_path / "d", [{"n": 1}], {"n": dtype}, format=format, mode="overwrite")

    write = partial(sx.write, tmp_path / "d", numbers(), transform=fails, format=format, mode="append", shard_rows=10)
    target("int32")
    with pytest.raises(ZeroDivisionError):
        write()
    (tmp_path / "there").touch()
    target("int64")
    with pytest.raises(SchemaError, match=r"begun with \(n int32\), got n int64; remove this folder"):
        write()
    assert len(sx.open(tmp_path / "d")) == 1
    target("int32")
    assert len(write()) == 501, "continued"


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_samples_with_errors_are_left_out_and_listed(tmp_path: Path, workers: int, batched: bool) -> None:
    def single(sample: Any) -> dict[str, Any]:
        if sample.n in (3, 77):
            raise ValueError(f"bad {sample.n}")
        return {"n": "text" if sample.n == 99 else sample.n}

    def many(batch: Any) -> dict[str, Any]:
        return {"n": [single(one)["n"] for one in batch]}

    function = many if batched else single
    with pytest.warns(UserWarning, match=r"3 of 200 samples were left out because of errors \(sample 3: ValueError"):
        out = sx.write(
            tmp_path / "d",
            numbers(200),
            transform=function,
            batched=batched,
            on_error="skip",
            workers=workers,
            shard_rows=30,
        )
    assert [one.n for one in out] == [k for k in range(200) if k not in (3, 77, 99)]
    assert [one.row for one in out.left_out] == [3, 77, 99]
    assert "bad 77" in out.left_out[1].error


@pytest.mark.parametrize("format", ["arrow", "jsonl", "tar"])
@pytest.mark.parametrize("batched", [False, True])
def test_all_results_of_a_sample_are_left_out(tmp_path: Path, format: str, batched: bool) -> None:
    def twice(sample: Any) -> list[dict[str, Any]]:
        return [{"n": sample.n}, {"n": "text" if sample.n == 51 else sample.n}]

    def many(batch: Any) -> dict[str, Any]:
        return {"n": [made["n"] for one in batch for made in twice(one)]}

    with pytest.warns(UserWarning, match="1 of 100 samples"):
        out = sx.write(
            tmp_path / "d",
            numbers(100),
            {"n": int},
            transform=many if batched else twice,
            filter=(lambda batch: batch.n % 2 == 1) if batched else (lambda sample: sample.n % 2 == 1),
            batched=batched,
            batch_size=20,
            on_error="skip",
            format=format,
        )
    name = "n"
    assert [one[name] for one in out] == [k for k in range(100) for _ in range(2) if k % 2 and k != 51]
    assert [(one.row, one.place) for one in out.left_out] == [(51, "sample 51")]


def test_left_out_samples_are_tried_again_if_errors_are_to_be_raised(tmp_path: Path) -> None:
    def needs_file(sample: Any) -> dict[str, Any]:
        if sample.n == 70 and not (tmp_path / "stop").exists():
            raise KeyboardInterrupt
        if sample.n == 3 and not (tmp_path / "there").exists():
            raise ValueError("not there")
        return {"n": sample.n}

    with pytest.raises(KeyboardInterrupt):
        sx.write(tmp_path / "d", numbers(100), {"n": int}, transform=needs_file, on_error="skip", shard_rows=10)
    (tmp_path / "stop").touch()
    (tmp_path / "there").touch()
    out = sx.write(tmp_path / "d", numbers(100), {"n": int}, transform=needs_file, shard_rows=10)
    assert [one.n for one in out] == list(range(100))
    assert out.left_out == []


def test_samples_that_cannot_be_read_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n{"n": \n{"n": 3}\n')
    with pytest.warns(UserWarning, match="1 of 3 samples"):
        out = sx.write(tmp_path / "d", sx.open(tmp_path / "a.jsonl", schema={"n": int}), on_error="skip")
    assert [one.n for one in out] == [1, 3]
    assert out.left_out[0].row == 1
    assert "a.jsonl" in out.left_out[0].place


@pytest.mark.parametrize("format", ["arrow", "parquet", "tokens"])
def test_append_with_other_fields_is_refused_before_parts_are_written(tmp_path: Path, format: str) -> None:
    first, other = (sx.open([{"x": np.arange(3, dtype=dtype)} for _ in range(4)]) for dtype in ("uint16", "uint32"))
    sx.write(tmp_path / "d", first, format=format)
    before = content(tmp_path)
    with pytest.raises(SchemaError, match="uint16"):
        sx.write(tmp_path / "d", other, other.features, format=format, mode="append", workers=1)
    assert content(tmp_path) == before
    assert os.listdir(tmp_path) == ["d"]


def test_append_to_a_dataset_with_keys(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    sx.write(folder, numbers(5), key="s")
    out = sx.write(folder, numbers(100)[50:], transform=double, mode="append", workers=1)
    assert out.get("t70").n == 140
    assert sx.verify(folder) == []
    with pytest.raises(DuplicateKeyError, match="'t70'"):
        sx.write(folder, numbers(71)[70:], mode="append", workers=1)
    assert len(sx.open(folder)) == 55


def test_append_to_a_dataset_that_generates_keys(tmp_path: Path) -> None:
    schema = {"n": int, "s": str}
    sx.write(tmp_path / "d", [{"n": 1}], schema, key="s", generate_keys=True)
    out = sx.write(tmp_path / "d", numbers(10).select("n"), schema, mode="append", shard_rows=4)  # of several parts
    assert len({sample.s for sample in out}) == 11
    assert out.get(out[10].s).n == 9
    with pytest.raises(SchemaError, match="expected text, got nothing"):
        sx.write(tmp_path / "d", numbers(10).select("n"), schema, mode="append", workers=1)
    assert len(sx.write(tmp_path / "d", numbers(10).select("n", "s"), mode="append", workers=1)) == 21


def test_append_to_a_dataset_that_another_writer_has_created_with_a_key(tmp_path: Path) -> None:
    def while_written(sample: Any) -> dict[str, Any]:
        if sample.n == 3:
            sx.write(tmp_path / "d", numbers(2), key="s")
        return double(sample)

    with pytest.raises(SchemaError, match="expected samples that were written with the key s"):
        sx.write(tmp_path / "d", numbers(5)[2:], numbers(1).features, transform=while_written, mode="append")
    assert len(sx.open(tmp_path / "d")) == 2


@pytest.mark.parametrize("format", ["parquet", "tokens"])
def test_append_to_a_dataset_that_another_writer_has_created_with_other_fields(tmp_path: Path, format: str) -> None:
    def while_written(sample: Any) -> dict[str, Any]:
        if sample.n == 3:
            sx.write(tmp_path / "d", [{"x": np.arange(3, dtype="uint16")}], format=format)
        return {"x": np.arange(3, dtype="uint32")}

    schema = {"x": sx.Array("uint32", (3,))}
    with pytest.raises(SchemaError, match="uint16"):
        sx.write(tmp_path / "d", numbers(5), schema, transform=while_written, format=format, mode="append")
    assert len(sx.open(tmp_path / "d")) == 1


def test_published_samples_whose_version_was_removed_are_not_published_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(folder: JobFolder) -> None:
        raise KeyboardInterrupt

    sx.write(tmp_path / "d", numbers(3))
    monkeypatch.setattr(JobFolder, "remove", killed)
    with pytest.raises(KeyboardInterrupt):
        sx.write(tmp_path / "d", numbers(10), transform=double, mode="append")
    monkeypatch.undo()
    sx.write(tmp_path / "d", numbers(1), mode="append")
    sx.clean(tmp_path / "d", grace=0)
    with pytest.raises(CommitConflict, match="remove the folder of the job"):
        sx.write(tmp_path / "d", numbers(10), transform=double, mode="append")
    assert sx.verify(tmp_path / "d") == []
    assert len(sx.open(tmp_path / "d")) == 14


def test_value_that_does_not_fit(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"at sample 400; give a schema that fits all results"):
        sx.write(tmp_path / "d", numbers(), transform=lambda s: {"n": "x" if s.n == 400 else s.n}, workers=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"transform": 5}, "expected a function for transform="),
        ({"filter": "n > 1"}, "expected a function for filter="),
        ({"on_error": "ignore"}, 'expected on_error="raise" or "skip"'),
        ({"batch_size": 0, "transform": double}, "expected a batch_size of at least 1"),
        ({"batch_size": True, "transform": double}, "expected a batch_size of at least 1"),
        ({"filter": lambda sample: None}, "expected True or False from .*, got NoneType - at sample 0"),
        ({"filter": lambda sample: sample.x > 1}, "expected True or False from .*, got ndarray - at sample 0"),
        ({"format": "bins", "codec": "zip", "transform": double}, "expected codec="),
        ({"format": "bins", "mode": "append", "workers": 1}, 'expected mode "create" or "overwrite"'),
        ({"workers": 0}, "worker"),
        ({"executor": "cluster"}, "executor"),
        ({"generate_keys": True, "key": "k", "workers": 1}, "expected no generate_keys"),
        ({"no_option": 1, "workers": 1}, "no_option"),
        ({"format": "nothing", "workers": 1}, "expected a format"),
        ({"mode": "new", "workers": 1}, "expected mode"),
    ],
)
def test_wrong_arguments(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ShardexError, match=message):
        sx.write(tmp_path / "d", numbers(5), **arguments)
    assert os.listdir(tmp_path) == []


def test_a_generator_has_no_parts(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no random access"):
        sx.write(tmp_path / "d", ({"x": k} for k in range(3)), workers=2)


def test_none_is_not_a_sample(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"return \[\] to leave a sample out"):
        sx.write(tmp_path / "d", numbers(5), transform=lambda sample: None)


# -- targets that exist ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["arrow", "parquet", "jsonl", "tar"])
def test_modes(tmp_path: Path, format: str) -> None:
    source = numbers(100)
    for _ in range(2):
        out: Any = sx.write(tmp_path / "d", source, transform=double, mode="append", format=format)
    assert [one["n"] for one in out] == [2 * k for k in range(100)] * 2
    if format == "tar":
        assert len({one["__key__"] for one in out}) == 200
    with pytest.raises(AlreadyExistsError):
        sx.write(tmp_path / "d", source, transform=double, format=format)
    out = sx.write(tmp_path / "d", source, transform=double, mode="overwrite", format=format)
    assert len(out) == 100
    assert os.listdir(tmp_path) == ["d"]


def never(sample: Any) -> dict[str, Any]:
    raise AssertionError("called")


@pytest.mark.parametrize("format", ["arrow", "jsonl", "bins"])
def test_targets_that_cannot_be_written_are_refused_before_the_first_call(tmp_path: Path, format: str) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("x")
    for name, mode in [(name, mode) for name in ("file", "other") for mode in ("create", "overwrite")]:
        with pytest.raises((AlreadyExistsError, FormatError), match=name):
            sx.write(tmp_path / name, numbers(), {"n": int}, transform=never, mode=mode, format=format)
    assert sorted(os.listdir(tmp_path)) == ["file", "other"]


@pytest.mark.parametrize("mode", ["create", "append", "overwrite"])
@pytest.mark.parametrize("format", ["arrow", "jsonl"])
def test_target_below_a_file_is_not_taken_for_the_end_of_another_run(tmp_path: Path, format: str, mode: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotFoundError, match=r"Not a directory: .*file/"):
        sx.write(tmp_path / "file" / "d", numbers(), {"n": int}, transform=never, mode=mode, format=format)


@pytest.mark.parametrize("format", ["arrow", "jsonl"])
def test_names_of_targets(tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(path: str | Path) -> None:
        assert len(sx.write(path, numbers(40), transform=double, format=format, shard_rows=20)) == 40

    names = ["a b", "ünï\n", os.fsdecode(b"\xff"), "x" * 255, "ü" * 125, ".hidden", "%s{}[1]*?", "d.job"]
    for name in names:
        write(tmp_path / name)
    (tmp_path / "link").symlink_to(tmp_path / "linked")
    write(tmp_path / "link")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    write(".")
    monkeypatch.chdir(tmp_path)
    write("new/parents/")
    assert sorted(os.listdir(tmp_path)) == sorted([*names, "link", "linked", "empty", "new"])
    assert os.listdir("new") == ["parents"]


@pytest.mark.parametrize("format", ["arrow", "jsonl"])
def test_dataset_is_written_to_its_own_place(tmp_path: Path, format: str) -> None:
    sx.write(tmp_path / "d", numbers(40).select("n"), format=format)
    for mode, factors in [("overwrite", [2]), ("append", [2, 4])]:
        source = sx.open(tmp_path / "d", format=format)
        doubled = partial(sx.write, tmp_path / "d", source, transform=lambda sample: {"n": 2 * sample.n}, mode=mode)
        assert [one.n for one in doubled(format=format, shard_rows=9)] == [f * k for f in factors for k in range(40)]
    assert os.listdir(tmp_path) == ["d"]


def test_keys(tmp_path: Path) -> None:
    out = sx.write(tmp_path / "d", numbers(), transform=double, key="s", workers=2)
    assert out.get("t77").n == 154
    with pytest.raises(ShardexError, match="t"):
        sx.write(tmp_path / "e", numbers(), transform=lambda s: {"s": f"t{s.n // 2}"}, key="s")
    assert not (tmp_path / "e").exists()


# -- kills ----------------------------------------------------------------------------------------------------------

PROGRAM = """
import sys, time
import numpy as np
import shardex as sx

def slow(sample):
    time.sleep(0.002)
    return {"n": 2 * sample.n, "x": sample.x}

source = sx.open([{"n": k, "x": np.full(64, k, np.float32)} for k in range(400)])
sx.write(sys.argv[1], source, transform=slow, workers=2, shard_rows=20, progress=False)
"""


def start(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(folder)])


def finished_parts(folder: Path) -> int:
    return sum(len(os.listdir(done)) for done in folder.parent.glob(f".{folder.name}.*.job/done"))


def test_killed_run_is_continued(tmp_path: Path) -> None:
    samples = [{"n": 2 * k, "x": np.full(64, k, np.float32)} for k in range(400)]
    sx.write(tmp_path / "whole", sx.open(samples), shard_rows=20, workers=1)
    target = tmp_path / "d"
    running = start(target)
    assert becomes_true(lambda: finished_parts(target) >= 3)
    running.kill()
    running.wait()
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob(".d.*.job/done/*")}
    assert len(kept) >= 3
    assert not target.exists()
    again = start(target)
    assert becomes_true(lambda: finished_parts(target) > len(kept) or again.poll() is not None)
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items() if path.exists()), "not run again"
    assert again.wait() == 0
    assert content(target) == content(tmp_path / "whole")
    assert sorted(os.listdir(tmp_path)) == ["d", "whole"]


def test_finished_part_that_is_gone_is_run_again(tmp_path: Path) -> None:
    def stops(sample: Any) -> dict[str, Any]:
        if sample.n == 95 and not (tmp_path / "go").exists():
            raise ZeroDivisionError
        return {"n": sample.n}

    with pytest.raises(ZeroDivisionError):
        sx.write(tmp_path / "d", numbers(100), {"n": int}, transform=stops, shard_rows=10)
    (part,) = tmp_path.glob(".d.*.job/parts/000003-*")
    shutil.rmtree(part)
    (tmp_path / "go").touch()
    out = sx.write(tmp_path / "d", numbers(100), {"n": int}, transform=stops, shard_rows=10)
    assert [one.n for one in out] == list(range(100))


def test_other_function_does_not_continue(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        sx.write(tmp_path / "d", numbers(), transform=fails_at_333, shard_rows=10)
    out = sx.write(tmp_path / "d", numbers(), transform=lambda sample: {"n": -sample.n}, shard_rows=10)
    assert [one.n for one in out] == [-k for k in range(500)]
    assert os.listdir(tmp_path) == ["d"]


@pytest.mark.parametrize("mode", ["create", "append", "overwrite"])
def test_another_run_ends_as_the_fields_are_noted(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that has found the folder of the job, but cannot write to it any more, says that the job is over."""
    source, target, link = numbers(20), tmp_path / "out", os.link
    if mode != "create":
        sx.write(target, numbers(3), transform=double)

    def link_late(path: str, to: str) -> None:
        if os.path.basename(to) == "fields.json":
            monkeypatch.setattr(os, "link", link)
            sx.write(target, source, transform=double, mode=mode)
        link(path, to)

    monkeypatch.setattr(os, "link", link_late)
    with pytest.raises(AlreadyExistsError, match="another run of the same job has written it meanwhile"):
        sx.write(target, source, transform=double, mode=mode)
    assert os.listdir(tmp_path) == ["out"]
    assert len(sx.open(target)) == (23 if mode == "append" else 20)


_EARLIER = threading.local()
"""What the function of `repeated` runs before it is called for the first time; no part of its fingerprint."""


def repeated(convert: Any, sample: Any) -> Any:
    if (run := vars(_EARLIER).pop("run", None)) is not None:
        run()
    return convert(sample)


@pytest.mark.parametrize("format", [one for one in WITH_BORDERS if format_named(one).part_format is None])
def test_append_publishes_once_if_another_run_ends_while_it_begins(tmp_path: Path, format: str) -> None:
    """The other run removes the folder of the job before this one has looked for it; later runs add samples again."""
    source, target = numbers(20), tmp_path / "out"
    has_rows = "shard_rows" in inspect.signature(format_named(format).create).parameters
    options: Any = {"shard_rows": 7} if has_rows else {"shard_size": 60}
    function = partial(repeated, for_format(format))
    sx.write(target, numbers(3), format=format, transform=for_format(format))

    def append() -> None:
        sx.write(target, source, format=format, mode="append", transform=function, **options)

    def append_others_then_run() -> None:
        sx.write(target, numbers(5), format=format, mode="append", transform=for_format(format))
        append()

    vars(_EARLIER)["run"] = append_others_then_run
    with pytest.raises(AlreadyExistsError, match="another run of the same job"):
        append()
    assert os.listdir(tmp_path) == ["out"]
    stored = len(sx.open(target, format=format))
    append()
    assert len(sx.open(target, format=format)) - stored == stored * 20 // 28
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize("format", ["arrow", "jsonl", "tar"])
def test_append_publishes_once_if_another_run_ends_after_it_has_looked(tmp_path: Path, format: str) -> None:
    """The folder of the job is there when a run begins, and gone when the run looks for it."""
    target = tmp_path / "out"
    vars(_EARLIER).pop("fixed", None)
    sx.write(target, numbers(3), format=format, transform=double)
    options: Any = {"format": format, "mode": "append", "transform": fails_once, "shard_rows": 5}
    with pytest.raises(ZeroDivisionError):
        sx.write(target, numbers(20), **options)
    vars(_EARLIER)["fixed"] = True
    began = Began.of(str(target), format)
    sx.write(target, numbers(20), **options)
    late = partial(write_in_parts, str(target), numbers(20), None, WriteSteps(fails_once, None, False, 256, "raise"))
    arguments: Any = {"workers": None, "executor": None, "progress": None, "options": {"shard_rows": 5}}
    with pytest.raises(AlreadyExistsError, match="another run of the same job"):
        late(format=format, mode="append", began=began, **arguments)
    assert os.listdir(tmp_path) == ["out"]
    assert len(sx.open(target, format=format, schema=numbers().features)) == 23


def fails_once(sample: Any) -> dict[str, Any]:
    return double(sample) if sample.n < 15 or "fixed" in vars(_EARLIER) else {"n": 1 // 0}


@pytest.mark.parametrize("format", ["arrow", "jsonl"])
def test_append_is_published_if_others_append_meanwhile(tmp_path: Path, format: str) -> None:
    """Other samples of the same number, written by another job, are no publication of this one."""
    target = tmp_path / "out"
    sx.write(target, numbers(3), format=format, transform=double)

    def append(**options: Any) -> None:
        sx.write(target, numbers(20), format=format, mode="append", transform=partial(repeated, double), **options)

    vars(_EARLIER)["run"] = lambda: sx.write(target, numbers(20), format=format, mode="append", transform=minus)
    append()
    assert sorted(one.n for one in sx.open(target, format=format, schema=numbers().features)) == sorted(
        [*(2 * k for k in range(3)), *(-k for k in range(20)), *(2 * k for k in range(20))]
    )


def test_executor_of_the_user(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        out = sx.write(tmp_path / "d", numbers(), transform=double, executor=pool)
        assert len(out) == 500
        assert pool.submit(int, "5").result() == 5


def test_value_that_does_not_fit_is_named_by_its_sample_in_the_source(tmp_path: Path) -> None:
    ds = sx.open([{"x": k} for k in range(300)])
    with pytest.raises(SchemaError, match=r"got float 200\.5 - at field y - in the result of .* at sample 200;"):
        sx.write(
            tmp_path / "a", ds, {"y": int}, transform=lambda s: {"y": s.x if s.x != 200 else 200.5}, progress=False
        )
    mixed = sx.open([{"x": k if k != 200 else None} for k in range(300)])
    with pytest.raises(SchemaError, match=r"got none - at sample 200, field x - in samples? "):
        sx.write(tmp_path / "b", mixed, {"x": int}, shard_rows=64, workers=1, progress=False)


def test_misspelt_argument_of_write_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"got 'num_workers': use workers="):
        sx.write(tmp_path / "a", [{"x": 1}], num_workers=2)
    with pytest.raises(ArgumentError, match=r"got 'shard_row': did you mean 'shard_rows'\?"):
        sx.write(tmp_path / "a", [{"x": 1}], shard_row=2)


@pytest.mark.parametrize("own", [True, False])
def test_an_error_ends_the_parts_that_run_in_other_threads(tmp_path: Path, own: bool) -> None:
    begun, calls = threading.Event(), []

    def slow(sample: sx.DictSample) -> Any:
        if sample.x == 0:
            begun.wait()
            raise ValueError("the first part ends")
        begun.set()
        calls.append(sample.x)
        time.sleep(0.01)
        return sample

    ds = sx.open([{"x": k} for k in range(100_000)])
    with ThreadPoolExecutor(2) as pool:
        options: dict[str, Any] = {"executor": pool if own else "threads", "workers": 2, "progress": False}
        with pytest.raises(ValueError, match="the first part ends"):
            sx.write(tmp_path / "out", ds, {"x": int}, transform=slow, **options)
    assert len(calls) < 1000, "a part has more"
    assert os.listdir(tmp_path) == []


def test_samples_of_views_are_named_by_position_and_number(tmp_path: Path) -> None:
    def fails(sample: Any) -> Any:
        raise ValueError("no")

    sx.write(tmp_path / "source", [{"x": k} for k in range(100)], progress=False)
    view = sx.open(tmp_path / "source").where("x >= 50")
    with pytest.raises(ValueError, match="no") as caught:
        sx.write(tmp_path / "a", view, transform=fails, progress=False)
    assert "at position 0 of the view, sample 50 of " in caught.value.__notes__[0]
    with pytest.raises(ValueError, match="no") as caught:
        sx.write(tmp_path / "a", view, {"x": int}, transform=fails, batched=True, progress=False)
    assert "at positions 0 to 49 of the view, samples 50 to 99 of " in caught.value.__notes__[0]


# -- features of results ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [1.5, None])
@pytest.mark.parametrize("of", ["map", "with_fields", "selected", "transform"])
def test_features_of_results_become_wider(tmp_path: Path, of: str, late: Any) -> None:
    base = sx.open([{"k": k} for k in range(200)])

    def value(sample: Any) -> Any:
        return 1 if sample.k < 150 else late

    function = None
    if of == "transform":
        given, function = base, lambda sample: {"k": sample.k, "y": value(sample)}
    elif of == "with_fields":
        given = base.with_fields(y=value)
    else:
        given = (base if of == "map" else base.select("k")).map(lambda sample: {"k": sample.k, "y": value(sample)})
    made = sx.write(tmp_path / "d", given[::-1], transform=function, progress=False)
    assert str(made.features) == f"k int64, y {'int64 or none' if late is None else 'float64'}"
    assert [one.k for one in made] == [*range(199, -1, -1)] and made[0].y == late and made[199].y == 1


def test_a_map_without_result_is_no_filter(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"does it end without return\?"):
        sx.write(tmp_path / "d", sx.open([{"k": k} for k in range(50)]).map(lambda s: {"k": 1} if s.k < 30 else None))


def test_fields_that_a_function_passes_on_keep_their_types(tmp_path: Path) -> None:
    schema = {
        "f": "float32",
        "c": sx.ClassLabel(["a", "b"]),
        "t": sx.Timestamp("ns"),
        "l": sx.Sequence(sx.Value("int8")),
    }
    samples = [{"f": 0.1 * k, "c": k % 2, "t": np.datetime64(k, "ns"), "l": [k]} for k in range(40)]
    typed = sx.write(tmp_path / "t", samples, schema)
    for number, function in enumerate(
        [dict, lambda s: {**s, "n": s.c}, lambda s: {**s, "n": 1.5 if s.l[0] > 30 else 1}]
    ):
        made = sx.write(tmp_path / f"{number}", typed, transform=function, progress=False)
        assert {name: made.features[name] for name in schema} == dict(typed.features)
        assert [one.f for one in made] == [one.f for one in typed]
    made = sx.write(
        tmp_path / "w", typed.map(lambda s: {**s, "f": s.f if s.c == 0 or s.f < 3 else 0.1}), progress=False
    )
    assert made.features["f"] == sx.Value("float64") and made[39].f == 0.1, "nothing is rounded"
