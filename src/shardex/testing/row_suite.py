"""`RowsSuite`: a dataset over rows behaves like a Python list of the same samples."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from shardex.dataset import Dataset
from shardex.dataset import open as open_dataset
from shardex.errors import (
    FieldError,
    SchemaError,
)
from shardex.features import Array, unwrap_optional
from shardex.formats import ShardRows
from shardex.rows import Rows
from shardex.samples import Batch, DictSample

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
