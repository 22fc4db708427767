"""Data files of a native dataset: the same bytes whether samples come one by one or as columns, in any pieces."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardex as sx
from shardex.errors import SchemaError
from shardex.features import Array, Features, Optional, Value
from shardex.kernel import MISSING, Columns, Masked, Ragged
from shardex.native import data_files
from shardex.native.data_files import FragmentWriter
from shardex.native.fragments import Fragment
from shardex.native.manifest import read_manifest
from shardex.sources import LocalSource
from tests.data_files import table_of
from tests.strategies import datasets

Samples = list[dict[str, Any]]


def contents(folder: Path, fragments: list[Fragment]) -> list[tuple[int, list[int], bytes]]:
    """Return rows, rows of the batches, and bytes of the file of each fragment."""
    files = [(one.rows, one.groups[0]) for one in fragments]
    return [(rows, table_of(folder, file).rows.tolist(), (folder / file.path).read_bytes()) for rows, file in files]


def appended(features: Features, samples: Samples, **options: Any) -> list[Any]:
    """Return the files of samples that are appended one by one."""
    return written(features, iter(samples), **options)


def extended(features: Features, pieces: Iterator[dict[str, Any] | Columns], **options: Any) -> list[Any]:
    """Return the files of samples that come from an iterator, with columns between them."""
    with tempfile.TemporaryDirectory() as folder:
        writer = FragmentWriter(LocalSource(folder), features, **options)
        for piece in pieces:
            if isinstance(piece, Columns) and len(piece) % 2:
                writer.write(piece)
                continue
            samples = iter(samples_of(piece))
            while writer.fill(samples, dict):
                writer.flush()
        return contents(Path(folder), writer.finish())


def written(features: Features, pieces: Iterator[dict[str, Any] | Columns], **options: Any) -> list[Any]:
    """Return the files of samples and of columns."""
    with tempfile.TemporaryDirectory() as folder:
        writer = FragmentWriter(LocalSource(folder), features, **options)
        for piece in pieces:
            if isinstance(piece, Columns):
                writer.write(piece)
                scribble(piece)
            else:
                writer.append(piece)
        return contents(Path(folder), writer.finish())


def scribble(columns: Columns) -> None:
    """Change the arrays of columns, as a caller does that reuses them."""
    for column in columns.data.values():
        if isinstance(column, np.ndarray) and column.flags.writeable and column.dtype.kind in "iuf":
            column[...] = 7


def pieces(samples: Samples, sizes: list[int], form: str) -> Iterator[dict[str, Any] | Columns]:
    """Yield columns of these numbers of samples in turn; a piece of size 0 is one sample by itself."""
    at = turn = 0
    while at < len(samples):
        size = sizes[turn % len(sizes)]
        turn += 1
        if size == 0:
            yield samples[at]
            at += 1
            continue
        columns = Columns.from_samples(samples[at : at + size])
        yield columns.stack() if form == "stacked" else columns
        at += size


def samples_of(piece: dict[str, Any] | Columns) -> Samples:
    """Return the samples of a piece: numpy stacks arrays of another byte order as such of this machine's."""
    return piece.to_samples() if isinstance(piece, Columns) else [piece]


@pytest.mark.parametrize("form", ["lists", "stacked"])
@settings(deadline=None)
@given(
    datasets(max_size=60),
    st.integers(1, 600),
    st.lists(st.integers(0, 40), min_size=1, max_size=5),
    st.none() | st.integers(1, 30),
    st.sampled_from([1, 2000, 512 << 20]),
)
def test_columns_in_any_pieces_give_the_bytes_of_single_samples(
    form: str,
    data: tuple[Features, Samples],
    batch_bytes: int,
    sizes: list[int],
    shard_rows: int | None,
    shard_size: int,
) -> None:
    features, samples = data
    options: dict[str, Any] = {"shard_rows": shard_rows, "shard_size": shard_size}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_files, "BATCH_BYTES", batch_bytes)
        single = [one for piece in pieces(samples, sizes, form) for one in samples_of(piece)]
        expected = appended(features, single, **options)
        assert written(features, pieces(samples, sizes, form), **options) == expected
        assert extended(features, pieces(samples, sizes, form), **options) == expected


@settings(deadline=None, max_examples=30)
@given(datasets(max_size=40), st.integers(1, 600), st.integers(1, 50))
def test_columns_that_were_read_give_the_bytes_of_the_samples(
    data: tuple[Features, Samples], batch_bytes: int, size: int
) -> None:
    features, samples = data
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        ds = sx.write(Path(folder) / "d", samples, features, progress=False)
        patch.setattr(data_files, "BATCH_BYTES", batch_bytes)
        read = (ds.read(np.arange(at, min(at + size, len(ds)))) for at in range(0, len(ds), size))
        assert written(features, iter(read)) == appended(features, samples)


@pytest.mark.parametrize("dtype", ["datetime64[us]", "timedelta64[us]", "float32"])
def test_missing_arrays_have_the_same_bytes_in_columns_and_in_samples(dtype: str) -> None:
    features = Features.of({"x": Optional(Array(dtype, (2,)))})
    samples: Samples = [{"x": None}, {"x": np.ones(2, dtype)}]
    stacked = Columns({"x": features["x"].fit_column([one["x"] for one in samples], str, "x", stored=False)})
    assert written(features, iter([stacked])) == appended(features, samples)


def test_large_columns_are_cut_into_batches() -> None:
    features = Features.of({"x": Array("uint8", (64, 64)), "n": int})
    images = np.random.default_rng(0).integers(0, 255, (3000, 64, 64), np.uint8)
    columns = Columns({"x": images, "n": np.arange(3000)})
    samples = [{"x": image, "n": n} for n, image in enumerate(images)]
    files = appended(features, samples)
    assert [batches for _, batches, _ in files] == [[512, 512, 512, 512, 512, 440]]
    assert written(features, iter([columns.slice(0, 1), columns.slice(1, 2900), columns.slice(2900, 3000)])) == files


def test_compact_writes_the_bytes_of_the_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "BATCH_BYTES", 200)
    samples = [{"n": n, "s": None if n % 3 else f"s{n}", "x": np.arange(n % 5)} for n in range(100)]
    schema = {"n": int, "s": str | None, "x": Array("int64", (None,))}
    sx.write(tmp_path / "small", samples, schema, shard_rows=7)
    sx.compact(tmp_path / "small")
    (made,) = read_manifest(LocalSource(tmp_path / "small"), 2).fragments
    assert contents(tmp_path / "small", [made]) == appended(Features.of(schema), samples)


def test_what_lies_under_missing_values_is_not_written() -> None:
    features = Features.of(
        {"a": Optional(Value("float32")), "b": Optional(Array("int8", (2,))), "c": Optional(Array("int8", (None,)))}
    )
    mask = np.array([True, False, True])
    rows = Ragged.from_arrays([np.full(k + 1, k, np.int8) for k in range(3)])
    columns = Columns(
        {
            "a": Masked(np.array([1, 2, 3], np.float32), mask),
            "b": Masked(np.arange(6, dtype=np.int8).reshape(3, 2), mask),
            "c": Masked(rows, mask),
        }
    )
    assert written(features, iter([columns])) == appended(features, columns.to_samples())


def test_columns_that_do_not_fit_name_the_sample(tmp_path: Path) -> None:
    features = Features.of({"n": int, "s": str | None})
    writer = FragmentWriter(LocalSource(tmp_path), features)
    writer.append({"n": 0, "s": None})
    writer.write(Columns({"n": np.arange(2)}))
    refused: dict[str, dict[str, Any]] = {
        "expected int64, got none - at sample 4, field n": {"n": [1, None], "s": ["a", "b"]},
        "expected int64, got nothing - at sample 4, field n": {"n": [1, MISSING], "s": ["a", "b"]},
        "expected int64, got nothing - at sample 3, field n": {"s": ["a", "b"]},
        "expected text, got int 1 - at sample 3, field s": {"n": [1, 2], "s": [1, "b"]},
        "expected the fields n, s, got 'z' too": {"n": [1, 2], "z": [1, 2]},
        "expected int64, got none - at sample 3, field n": {"n": Masked(np.arange(2), np.array([False, True]))},
    }
    for message, columns in refused.items():
        with pytest.raises(SchemaError) as error:
            writer.write(Columns(columns))
        assert str(error.value).startswith(message[:20]) and message.split(" - ")[-1] in str(error.value)
    ((rows, _, _),) = contents(tmp_path, writer.finish())
    assert rows == 3


def test_keys_are_generated_for_columns_too(tmp_path: Path) -> None:
    features = Features.of({"id": str, "n": int})
    writer = FragmentWriter(LocalSource(tmp_path), features, key="id", generate_keys=True)
    writer.write(Columns({"n": np.arange(3)}))
    writer.write(Columns({"n": np.arange(2), "id": ["a", None]}))
    (fragment,) = writer.finish()
    assert fragment.rows == 5 and fragment.keys is not None
