"""Conformance tests for rows and formats: derive a class from a suite, give it one fixture, and run pytest.

`RowsSuite` compares a dataset over rows with a Python list of the same samples: in this thread, in eight threads, in a
forked and in a spawned process, and after pickling. `FormatSuite` writes samples with a format and reads them. Needs
pytest.

>>> class TestMine(RowsSuite):
...     @pytest.fixture
...     def case(self):
...         samples = [{"x": k} for k in range(10)]
...         return Case(ListRows(samples), samples)
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
import pickle
import re
import shutil
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardex.dataset import Dataset, ListRows, create, write
from shardex.dataset import open as open_dataset
from shardex.errors import (
    AlreadyExistsError,
    ArgumentError,
    ClosedError,
    FieldError,
    NotFoundError,
    SchemaError,
    ShardexError,
)
from shardex.features import Array, unwrap_optional
from shardex.files import find
from shardex.formats import ShardRows, Signature, format_named, recognise, signature_of
from shardex.rows import Rows
from shardex.samples import Batch, DictSample
from shardex.sources import open_source

__all__ = ["Case", "FormatCase", "FormatSuite", "ListRows", "RowsSuite"]

_LARGEST_PICKLE = 64 << 10


@dataclass
class Case:
    """Rows to test, and the samples that they must have (at least three)."""

    rows: Rows
    samples: Sequence[Mapping[str, Any]]

    @property
    def dataset(self) -> Dataset:
        """The rows as a dataset."""
        return open_dataset(self.rows)

    @property
    def expected(self) -> list[DictSample]:
        """The samples as a dataset returns them."""
        return [DictSample(sample) for sample in self.samples]


class RowsSuite:
    """Tests that a dataset over rows behaves like a list of samples. Override the fixture `case`."""

    @pytest.fixture
    def case(self) -> Case:
        """The rows under test."""
        raise NotImplementedError("expected a fixture `case` that returns a Case, got none")

    def test_length(self, case: Case) -> None:
        assert len(case.dataset) == len(case.samples)

    def test_ints(self, case: Case) -> None:
        ds, expected, n = case.dataset, case.expected, len(case.samples)
        for k in [*range(n), *range(-n, 0)]:
            assert ds[k] == expected[k], f"sample {k}"

    def test_numpy_ints(self, case: Case) -> None:
        for kind in (np.int8, np.uint8, np.int32, np.int64, np.uint64):
            assert case.dataset[kind(1)] == case.expected[1]

    def test_positions_out_of_range_raise(self, case: Case) -> None:
        n = len(case.samples)
        for k in (n, -n - 1, 10**18, -(10**18)):
            with pytest.raises(IndexError):
                case.dataset[k]
            with pytest.raises(IndexError):
                case.dataset[[0, k]]
        with pytest.raises(IndexError):
            case.dataset.read([n])
        assert case.dataset.read([-1]).sample(0) == case.dataset[-1]

    def test_slices(self, case: Case) -> None:
        n = len(case.samples)
        ends = sorted({None, 0, 1, n // 2, n, n + 5, -1, -n - 5}, key=str)
        for start in ends:
            for stop in ends:
                for step in (None, 1, 2, -1, -3):
                    where = slice(start, stop, step)
                    assert list(case.dataset[where]) == case.expected[where], f"{where}"

    def test_slices_of_slices(self, case: Case) -> None:
        assert list(case.dataset[1:][::2][::-1]) == case.expected[1:][::2][::-1]

    @pytest.mark.parametrize("kind", [list, tuple, np.array, lambda rows: np.array(rows, np.int16)])
    def test_lists_and_arrays(self, case: Case, kind: Any) -> None:
        n = len(case.samples)
        for rows in ([2, 0, 1], [0, 0, -1], [n - 1], list(range(n - 1, -1, -1))):
            assert list(case.dataset[kind(rows)]) == [case.expected[k] for k in rows]
        assert list(case.dataset[[]]) == []

    def test_masks(self, case: Case) -> None:
        mask = np.arange(len(case.samples)) % 2 == 1
        assert list(case.dataset[mask]) == case.expected[1::2]
        assert list(case.dataset[mask.tolist()]) == case.expected[1::2]
        with pytest.raises(IndexError):
            case.dataset[mask[:-1]]

    def test_iteration_and_batches(self, case: Case) -> None:
        ds, expected, n = case.dataset, case.expected, len(case.samples)
        assert list(ds) == expected
        for size in (1, 2, n, n + 1):
            batches = list(ds.ordered(size))
            assert [sample for batch in batches for sample in batch] == expected
            assert all(len(batch) == size for batch in batches[:-1])

    def test_shuffled_is_a_permutation(self, case: Case) -> None:
        ds, expected = case.dataset, case.expected
        order = [k for batch in open_dataset([{"k": k} for k in range(len(ds))]).shuffled(2, seed=5) for k in batch.k]
        assert sorted(order) == list(range(len(ds)))
        assert [sample for batch in ds.shuffled(2, seed=5) for sample in batch] == [expected[k] for k in order]
        assert list(ds.shuffle(seed=5)) == [expected[k] for k in order]

    def test_getitems_returns_a_batch(self, case: Case) -> None:
        batch = case.dataset.__getitems__([1, -1, 1, 0])
        assert isinstance(batch, Batch)
        assert list(batch) == [case.expected[k] for k in (1, -1, 1, 0)]
        assert [batch[k] for k in range(4)] == list(batch)

    def test_no_rows(self, case: Case) -> None:
        empty = case.dataset[:0]
        assert len(empty) == 0 and list(empty) == [] and list(empty.ordered(3)) == []
        assert len(case.dataset.read(np.array([], np.int64))) == 0

    def test_fields(self, case: Case) -> None:
        ds = case.dataset
        for name in ds.fields:
            some = ds.select(name)
            assert some.fields == [name] and some.features[name] == ds.features[name]
            assert list(some) == [DictSample({name: sample.get(name)}) for sample in case.expected]
            assert some[1] == DictSample({name: case.expected[1].get(name)})
        back = list(reversed(ds.fields))
        assert ds.select(*back).fields == back and list(ds.select(*back)[0]) == back
        with pytest.raises(FieldError, match="no such field at all"):
            ds.select("no such field at all")
        with pytest.raises(KeyError):
            ds.read([0], ["no such field at all"])

    def test_lengths(self, case: Case) -> None:
        ds = case.dataset
        for name, feature in ds.features.items():
            inner = unwrap_optional(feature)
            if not isinstance(inner, Array) or inner.shape == ():
                with pytest.raises(SchemaError, match="expected a field of arrays, got"):
                    ds.lengths(name)
                continue
            expected = [0 if sample.get(name) is None else len(sample[name]) for sample in case.expected]
            for view, some in ((ds, expected), (ds[::-1], expected[::-1]), (ds[1:2], expected[1:2])):
                assert view.lengths(name).tolist() == some, name
        with pytest.raises(FieldError, match="no such field at all"):
            ds.lengths("no such field at all")

    def test_arrow(self, case: Case) -> None:
        table = case.dataset.to_arrow()
        assert table.num_rows == len(case.samples) and table.column_names == case.dataset.fields

    def test_advise_does_not_change_results(self, case: Case) -> None:
        ds, n = case.dataset, len(case.samples)
        for rows in ([], [0], [n - 1, 0, n - 1], np.arange(n), np.array([n, -n - 1, 10**15, 0])):
            ds.advise(rows)
            if (advise := getattr(case.rows, "advise", None)) is not None:
                advise(np.array(rows, np.int64))
        for name in ds.fields:
            ds.advise([0, 1], [name])
        ds.advise([0], ["no such field at all"])
        assert list(ds) == case.expected
        ds.advise(np.arange(n))  # again, with all files open
        assert list(ds) == case.expected

    def test_shards_names_files(self, case: Case) -> None:
        ds, n = case.dataset, len(case.samples)
        names = ds.shards(np.arange(n))
        assert len(names) == n and all(isinstance(name, str) for name in names)
        assert any(names) or not isinstance(case.rows, ShardRows)
        assert ds.shards([-1, 0]) == [names[-1], names[0]] and ds[::-1].shards(slice(None)) == names[::-1]
        assert ds.shards([]) == []

    def test_fingerprint(self, case: Case) -> None:
        ds = case.dataset
        assert re.fullmatch("[0-9a-f]{16}", ds.fingerprint)
        assert ds.select(ds.fields[0]).fingerprint == ds.fingerprint
        views = [ds, ds[1:], ds[::-1], ds[[0, 1]], ds[[1, 0]], ds.shuffle(seed=1), ds.shuffle(seed=2)]
        assert len({view.fingerprint for view in views}) == len(views)
        assert [pickle.loads(pickle.dumps(view)).fingerprint for view in views] == [view.fingerprint for view in views]

    def test_in_python_is_a_truth_value(self, case: Case) -> None:
        assert isinstance(case.dataset.in_python, bool)
        assert case.dataset[:1].in_python == case.dataset.in_python

    def test_sql(self, case: Case) -> None:
        ds, expected = case.dataset, case.expected
        assert ds.sql("SELECT count(*) AS n FROM ds").to_pylist() == [{"n": len(expected)}]
        odd = ds.where("_row % 2 = ?", [1])
        assert list(odd) == expected[1::2] and list(odd[::-1].where("_row > 0")) == expected[1::2][::-1][1:]
        for name in ds.fields:
            quoted = '"' + name.replace('"', '""') + '"'
            there = [sample for sample in expected if sample.get(name) is not None]
            assert list(ds.where(f"{quoted} IS NOT NULL")) == there, name
            assert list(ds[::-1].where(f"{quoted} IS NOT NULL")) == there[::-1], name

    def test_pickle_is_small_and_reads_the_same_samples(self, case: Case) -> None:
        list(case.dataset)  # open files must not be pickled
        data = pickle.dumps(case.dataset[::-1])
        assert len(data) < _LARGEST_PICKLE
        assert list(pickle.loads(data)) == case.expected[::-1]

    def test_no_file_stays_open(self, case: Case) -> None:
        if not os.path.isdir("/proc/self/fd"):
            pytest.skip("needs /proc")
        before = len(os.listdir("/proc/self/fd"))
        ds = case.dataset
        list(ds)
        assert len(os.listdir("/proc/self/fd")) <= before  # fewer if another dataset was collected meanwhile

    def test_eight_threads(self, case: Case) -> None:
        ds, expected = case.dataset, case.expected

        def work(seed: int) -> bool:
            rows = np.random.default_rng(seed).integers(0, len(ds), 50)
            same = list(ds.__getitems__(rows.tolist())) == [expected[k] for k in rows]
            return same and ds[int(rows[0])] == expected[rows[0]]

        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(work, range(32)))

    @pytest.mark.parametrize("method", ["fork", "spawn"])
    def test_other_processes(self, case: Case, method: str) -> None:
        if method not in multiprocessing.get_all_start_methods():
            pytest.skip(f"{method} is not available")
        ds = case.dataset
        ds[0]  # the child inherits what the parent has opened
        context: Any = multiprocessing.get_context(method)
        results = context.SimpleQueue()
        children = [context.Process(target=_compare, args=(ds, case.expected, seed, results)) for seed in range(2)]
        for child in children:
            child.start()
        for child in children:
            child.join(60)
        assert [child.exitcode for child in children] == [0, 0]
        assert [results.get() for _ in children] == [(True, ds.fingerprint)] * 2


def _compare(ds: Dataset, expected: list[DictSample], seed: int, results: Any) -> None:
    rows = np.random.default_rng(seed).integers(0, len(ds), 50).tolist()
    same = list(ds.__getitems__(rows)) == [expected[k] for k in rows] and ds[rows[0]] == expected[rows[0]]
    ds.advise(rows)
    results.put((same and list(ds) == expected, ds.fingerprint))


@dataclass(frozen=True)
class FormatCase:
    """A format to test, and samples that it can hold: at least four."""

    format: str
    samples: Sequence[Mapping[str, Any]]
    schema: Any = None
    write: Mapping[str, Any] = field(default_factory=dict)
    """Options of `write`."""
    open: Mapping[str, Any] = field(default_factory=dict)
    """Options of `open`."""
    expected: Sequence[Mapping[str, Any]] | None = None
    """The samples as they are read, if the format gives them other fields, such as names."""

    def stored(self, path: object, samples: Sequence[Any] | None = None, **options: Any) -> Any:
        """Write samples, by default all of them, and return the path."""
        some = self.samples if samples is None else samples
        write(str(path), some, self.schema, format=self.format, progress=False, **{**self.write, **options})
        return path

    def opened(self, path: object, **options: Any) -> Dataset:
        """Open a dataset, with media as their bytes."""
        return open_dataset(str(path), **{**self.open, **options}).decode(False)

    def read(self, path: object, **options: Any) -> list[DictSample]:
        """Return all samples of a dataset, read together; those that are read one by one must be equal."""
        ds = self.opened(path, **options)
        samples = list(ds)
        assert [ds[k] for k in range(len(ds))] == samples
        return samples

    @property
    def values(self) -> list[DictSample]:
        """The samples as they are read."""
        return list(map(DictSample, self.samples if self.expected is None else self.expected))


class FormatSuite:
    """Tests that a format writes and reads samples as all formats do. Override the fixture `case`.

    `RowsSuite` tests the rows of a format in more detail: ``Case(case.opened(path).rows, case.expected)``.

    >>> class TestMine(FormatSuite):
    ...     @pytest.fixture
    ...     def case(self):
    ...         return FormatCase("jsonl", [{"x": k} for k in range(10)], {"x": int})
    """

    @pytest.fixture
    def case(self) -> FormatCase:
        """The format under test."""
        raise NotImplementedError("expected a fixture `case` that returns a FormatCase, got none")

    def test_written_samples_are_read(self, case: FormatCase, tmp_path: Path) -> None:
        assert case.read(case.stored(tmp_path / "d"), format=case.format) == case.values

    def test_files_are_recognised(self, case: FormatCase, tmp_path: Path) -> None:
        if signature_of(case.format) == Signature(format=signature_of(case.format).format):
            pytest.skip("the files of this format have nothing to be recognised by")
        assert recognise(find(case.stored(tmp_path / "d"))) == case.format
        assert case.read(tmp_path / "d") == case.values

    def test_existing_files_are_kept(self, case: FormatCase, tmp_path: Path) -> None:
        case.stored(tmp_path / "d")
        with pytest.raises(AlreadyExistsError):
            case.stored(tmp_path / "d")
        assert case.read(tmp_path / "d", format=case.format) == case.values

    def test_append(self, case: FormatCase, tmp_path: Path) -> None:
        case.stored(tmp_path / "d", case.samples[:2])
        try:
            case.stored(tmp_path / "d", case.samples[2:], mode="append")
        except ArgumentError as error:
            pytest.skip(f"the format has no mode append: {error}")
        assert case.read(tmp_path / "d", format=case.format) == case.values

    def test_overwrite(self, case: FormatCase, tmp_path: Path) -> None:
        case.stored(tmp_path / "d")
        before = case.opened(tmp_path / "d", format=case.format)
        case.stored(tmp_path / "d", case.samples[:2], mode="overwrite")
        assert case.read(tmp_path / "d", format=case.format) == case.values[:2]
        with suppress(ShardexError):
            assert list(before) == case.values, "an open dataset raises an error, or reads what it was opened with"

    def test_no_samples(self, case: FormatCase, tmp_path: Path) -> None:
        case.stored(tmp_path / "d", [])
        ds = case.opened(tmp_path / "d", format=case.format)
        assert len(ds) == 0 and list(ds) == []

    def test_nothing_is_there_before_the_writer_is_closed(self, case: FormatCase, tmp_path: Path) -> None:
        options: Any = {"format": case.format, **case.write}
        writer = create(tmp_path / "d", case.schema, **options)
        writer.append(case.samples[0])
        with pytest.raises(NotFoundError):
            case.opened(tmp_path / "d", format=case.format)
        writer.abort()
        assert not (tmp_path / "d").exists()
        case.stored(tmp_path / "d")
        with suppress(ZeroDivisionError), create(tmp_path / "d", case.schema, mode="overwrite", **options) as writer:
            writer.append(case.samples[0])
            raise ZeroDivisionError("as user code does")
        assert case.read(tmp_path / "d", format=case.format) == case.values

    def test_a_sample_that_cannot_be_written_is_left_out(self, case: FormatCase, tmp_path: Path) -> None:
        with create(tmp_path / "d", case.schema, format=case.format, **case.write) as writer:
            for sample in case.samples:
                with pytest.raises(SchemaError, match="no such field"):
                    writer.append({**sample, "no such field": 1})
                writer.append(sample)
        with pytest.raises(ClosedError):
            writer.append(case.samples[0])
        assert case.read(tmp_path / "d", format=case.format) == case.values

    def test_options_are_checked(self, case: FormatCase, tmp_path: Path) -> None:
        with pytest.raises(ArgumentError, match="no_such_option"):
            case.stored(tmp_path / "d", no_such_option=1)
        assert not (tmp_path / "d").exists()
        case.stored(tmp_path / "d")
        with pytest.raises(ArgumentError, match="no_such_option"):
            case.opened(tmp_path / "d", format=case.format, no_such_option=1)

    def test_pickle(self, case: FormatCase, tmp_path: Path) -> None:
        ds = case.opened(case.stored(tmp_path / "d"), format=case.format)
        data = pickle.dumps(ds)
        again = pickle.loads(data)
        assert len(data) < _LARGEST_PICKLE
        assert list(again) == case.values and again.fingerprint == ds.fingerprint

    def test_a_copy_is_the_same_dataset(self, case: FormatCase, tmp_path: Path) -> None:
        case.stored(tmp_path / "d")
        shutil.copytree(tmp_path / "d", tmp_path / "copy", ignore=shutil.ignore_patterns(".shardex"))
        assert case.read(tmp_path / "copy", format=case.format) == case.values

    def test_remote_files(self, case: FormatCase, tmp_path: Path) -> None:
        """Files in a store without folders, local disk and links: what is written locally is read from there."""
        case.stored(tmp_path / "d")
        there = open_source(f"memory://copy{tmp_path}")
        for path in _files(tmp_path / "d"):
            there.put(path, (tmp_path / "d" / path).read_bytes())
        for access in ("ranged", "whole"):
            options: Any = {"format": case.format, "access": access, "cache": tmp_path / access}
            assert case.read(there.url, **options) == case.values

    def test_written_to_a_store(self, case: FormatCase, tmp_path: Path) -> None:
        url = f"memory://written{tmp_path}"
        try:
            case.stored(url)
        except ArgumentError as error:
            pytest.skip(f"the format is only written to local folders: {error}")
        assert case.read(url, format=case.format, cache=tmp_path / "cache") == case.values
        with pytest.raises(AlreadyExistsError):
            case.stored(url)

    def test_parts_of_a_job_are_joined_in_order(self, case: FormatCase, tmp_path: Path) -> None:
        tested = format_named(case.format)
        known = inspect.signature(tested.create).parameters
        cut = {"shard_rows": 2} if "shard_rows" in known else {"shard_size": 1} if "shard_size" in known else {}
        some = open_dataset(list(case.samples))
        for name, how in (("one", {"workers": 1}), ("threads", {"executor": "threads", "workers": 2})):
            options: Any = {**case.write, **cut, **how, "progress": False}
            write(tmp_path / name, some, case.schema, transform=dict, format=case.format, **options)
            found, expected = case.read(tmp_path / name, format=case.format), case.values
            if tested.name_field is not None:  # each part has names of its own
                for sample in found + expected:
                    del sample[tested.name_field]
            assert found == expected
        assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "threads"]

    def test_files_that_were_cut_off(self, case: FormatCase, tmp_path: Path) -> None:
        """Where the format can tell, an error names the file or the dataset; other exceptions are wrong."""
        case.stored(tmp_path / "d")
        for path in _files(tmp_path / "d"):
            data = (tmp_path / "d" / path).read_bytes()
            for length in sorted({0, 1, len(data) // 2, len(data) - 1} - {-1, len(data)}):
                self._check_damaged(case, tmp_path, path, data[:length])

    def test_files_with_changed_bytes(self, case: FormatCase, tmp_path: Path) -> None:
        case.stored(tmp_path / "d")
        for path in _files(tmp_path / "d"):
            data = (tmp_path / "d" / path).read_bytes()
            for at in range(0, len(data), max(1, len(data) // 8)):
                for value in (b"\0", b"\xff"):
                    self._check_damaged(case, tmp_path, path, data[:at] + value + data[at + 1 :])

    def _check_damaged(self, case: FormatCase, tmp_path: Path, path: str, data: bytes) -> None:
        """Assert that a dataset in which one file has other bytes is read, or raises an error that names the file."""
        folder = tmp_path / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(tmp_path / "d", folder, ignore=shutil.ignore_patterns(".shardex"))
        (folder / path).write_bytes(data)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                list(case.opened(folder, format=case.format))
        except ShardexError as error:
            if os.path.basename(path) not in str(error) and str(folder) not in str(error):
                raise AssertionError(f"expected an error that names {folder / path}, got {error!r}") from error


def _files(folder: Path) -> list[str]:
    """Return the paths of the files of a dataset, without what shardex has saved beside them."""
    paths = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
    return [path for path in paths if not path.startswith(".shardex/")]
