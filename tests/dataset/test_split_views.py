"""`split` by class, group and time, `balanced` and `weighted`: which samples are where, resumed runs, and errors."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import shardex as sx
from shardex.dataset.split_views import codes_of
from shardex.errors import ArgumentError, FieldError, SchemaError

DAY = dt.timedelta(days=1)


def samples(count: int = 200) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {
            "x": k,
            "label": "abc"[2 if k % 20 == 7 else k % 10 // 5],
            "patient": f"p{k % 37 % 23}",
            "date": dt.date(2024, 1, 1) + DAY * int(rng.integers(0, 60)),
            "weight": float(k % 4),
            "image": np.zeros((4, 4), np.uint8),
        }
        for k in range(count)
    ]


@pytest.fixture(scope="module", params=["memory", "native", "jsonl"])
def ds(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> sx.Dataset:
    if request.param == "memory":
        return sx.open(samples())
    path = tmp_path_factory.mktemp(request.param) / "d"
    kind = "arrow" if request.param == "native" else "jsonl"
    return sx.write(str(path), samples(), format=kind)


def values(part: sx.Dataset, field: str = "x") -> list[Any]:
    return [sample[field] for sample in part.select(field)]


def counts(part: sx.Dataset, field: str) -> dict[Any, int]:
    found = values(part, field)
    return {one: found.count(one) for one in sorted({*found})}


class TestStratified:
    @pytest.mark.parametrize("seed", [None, 4])
    def test_parts_have_their_share_of_every_class(self, ds: sx.Dataset, seed: int | None) -> None:
        parts = ds.split(0.7, 0.2, 0.1, seed=seed, stratify="label")
        assert sorted(itertools.chain(*map(values, parts))) == list(range(200))
        whole = counts(ds, "label")
        for part, share in zip(parts, (0.7, 0.2, 0.1), strict=True):
            assert all(abs(counts(part, "label").get(one, 0) - share * n) < 1 for one, n in whole.items())
        assert [len(part) for part in parts] == [140, 40, 20]
        assert (values(parts[0]) == sorted(values(parts[0]))) == (seed is None)

    def test_same_seed_same_parts(self, ds: sx.Dataset) -> None:
        one, again, other = (values(ds.split(0.5, seed=seed, stratify="label")[0]) for seed in (1, 1, 2))
        assert one == again and sorted(one) != sorted(other)

    def test_names_lists_of_fields_and_arrays(self, ds: sx.Dataset) -> None:
        parts = ds.split({"train": 0.5, "test": 0.5}, stratify=["label", "weight"])
        both = [list(zip(values(p, "label"), values(p, "weight"), strict=True)) for p in parts.values()]
        assert all(abs(both[0].count(one) - both[1].count(one)) <= 1 for one in {*both[0], *both[1]})
        array = np.array(values(ds, "label"))
        assert values(ds.split(0.5, stratify=array)[0]) == values(ds.split(0.5, stratify="label")[0])

    def test_missing_values_are_a_class(self) -> None:
        ds = sx.open([{"y": None if k % 2 else k % 4} for k in range(40)])
        for part in ds.split(0.5, stratify="y", seed=1):
            found = values(part, "y")
            assert [found.count(one) for one in (None, 0, 2)] == [10, 5, 5]

    @pytest.mark.parametrize(
        "array",
        [
            np.array([None, "a"] * 20, object),
            np.array([float("nan"), "a"] * 20, object),
            np.array([float("nan"), 1, None, 1] * 10, object),
            np.array([float("nan"), 1.0] * 20),
            np.array(["NaT", "2024-01-01"] * 20, "datetime64[D]"),
            np.ma.array([7, 1] * 20, mask=[True, False] * 20),
        ],
    )
    def test_missing_values_of_arrays_are_a_class_but_no_group(self, array: Any) -> None:
        ds = sx.open({"x": np.arange(40)})
        codes, count = codes_of(ds, array, "stratify", optional=True)
        assert count == len({*codes.tolist()})
        for part in ds.split(0.5, stratify=array, seed=1):
            assert len(part) == 20 and sum(k % 2 for k in values(part)) == 10
        with pytest.raises(SchemaError, match=r"every sample for group, got none in 20 of 40, the first is sample 0"):
            ds.split(0.5, group=array)

    def test_array_of_other_objects(self) -> None:
        ds = sx.open({"x": np.arange(4)})
        array = np.empty(4, object)
        array[:] = [(1, 2), "a", (1, 2), "a"]
        assert [values(part) for part in ds.split(0.5, stratify=array)] == [[0, 1], [2, 3]]
        array[0] = [1]
        with pytest.raises(ArgumentError, match="expected an array of numbers, text, bytes or times for stratify"):
            ds.split(0.5, stratify=array)

    def test_columns_of_several_chunks(self) -> None:
        chunks = [["a", None, "b"], [], ["c", "a", None], [None, "d"]]
        plain = pa.chunked_array(chunks, pa.string())
        times = pa.chunked_array([[0, None], [5], [0, 5, None, 5, 1]], pa.timestamp("s"))
        for column, labels in (
            (plain, [one for chunk in chunks for one in chunk]),
            (plain.dictionary_encode(), [one for chunk in chunks for one in chunk]),
            (times, [0, None, 5, 0, 5, None, 5, 1]),
        ):
            codes, count = codes_of(sx.open(pa.table({"y": column})), "y", "stratify", optional=True)
            pairs = {*zip(codes.tolist(), labels, strict=True)}
            assert len(pairs) == count == len({*labels}) and {code for code, _ in pairs} == {*range(count)}

    def test_only_the_fields_that_divide_are_read(self) -> None:
        below = sx.open(samples())
        read: set[str] = set()

        class Recorded:
            features = below.features

            def __len__(self) -> int:
                return len(below)

            def read(self, rows: Any, fields: Any = None) -> sx.Columns:
                read.update(fields or below.fields)
                return below.read(rows, fields)

        ds = sx.Dataset(Recorded())
        ds.split(0.5, stratify="label", group="patient")
        ds.split(0.5, time="date", within="patient")
        ds.split(time="date", at="2024-02-01")
        ds.weighted("weight").balanced("label")
        assert read == {"label", "patient", "date", "weight"}

    def test_empty_dataset(self) -> None:
        empty = sx.open(samples()).take(0)
        assert [len(part) for part in empty.split(0.5, stratify="label")] == [0, 0]
        assert [len(part) for part in empty.split(0.5, group="label", seed=1)] == [0, 0]
        assert [len(part) for part in empty.split(0.5, time="date")] == [0, 0]


class TestGrouped:
    @pytest.mark.parametrize("stratify", [None, "label"])
    def test_groups_are_in_one_part(self, ds: sx.Dataset, stratify: str | None) -> None:
        parts = ds.split(0.6, 0.4, group="patient", stratify=stratify, seed=2)
        groups = [{*values(part, "patient")} for part in parts]
        assert not groups[0] & groups[1] and sum(map(len, parts)) == 200
        assert abs(len(parts[0]) - 120) <= 12
        assert values(parts[0]) != sorted(values(parts[0]))

    def test_group_of_every_sample_is_needed(self) -> None:
        ds = sx.open([{"g": k or None} for k in range(5)])
        with pytest.raises(SchemaError, match=r"none in 1 of 5, the first is sample 0 - at field g; .*IS NOT NULL"):
            ds.split(0.5, group="g")
        assert len(ds.where('"g" IS NOT NULL').split(0.5, group="g")[0]) == 2

    def test_groups_that_cannot_be_divided(self) -> None:
        ds = sx.open([{"g": k > 0} for k in range(100)])
        with pytest.raises(ArgumentError, match=r"got 2 in 100 samples: part \d would be empty"):
            ds.split([0.8, 0.1, 0.1], group="g")
        for seed in (None, 0, 1, 2):
            assert [len(part) for part in ds.split(0.8, group="g", seed=seed)] == [99, 1]
            assert [len(part) for part in ds.split([1.0, 0.0], group="g", seed=seed)] == [100, 0]


class TestTime:
    def test_parts_follow_one_another(self, ds: sx.Dataset) -> None:
        train, test = ds.split(0.75, time="date")
        assert max(values(train, "date")) < min(values(test, "date"))
        assert abs(len(train) - 150) < 5 and len(train) + len(test) == 200
        assert values(train, "date") == sorted(values(train, "date"))

    def test_every_group_is_cut_by_itself(self, ds: sx.Dataset) -> None:
        parts = ds.split({"train": 0.5, "test": 0.5}, time="date", within="patient")
        for patient in {*values(ds, "patient")}:
            first, second = (part.where("patient = ?", [patient]) for part in parts.values())
            assert not len(second) or not len(first) or max(values(first, "date")) < min(values(second, "date"))
            assert abs(len(first) - len(second)) <= 2
        assert values(parts["test"], "date") == sorted(values(parts["test"], "date"))

    @pytest.mark.parametrize(
        "cut", ["2024-01-20", dt.date(2024, 1, 20), dt.datetime(2024, 1, 20), np.datetime64("2024-01-20")]
    )
    def test_cut_at_a_time(self, cut: Any) -> None:
        ds = sx.open(samples())
        train, test = ds.split(time="date", at=cut)
        assert max(values(train, "date")) < dt.date(2024, 1, 20) <= min(values(test, "date"))
        named = ds.split(time="date", at={"val": "2024-01-10", "test": cut})
        assert min(values(named["val"], "date")) >= dt.date(2024, 1, 10)
        assert values(named["test"]) == values(test) and len(named["val"]) < len(train)

    def test_times_of_other_types(self) -> None:
        stamps = pa.table(
            {"t": pa.array([3, 1, 2], pa.timestamp("s", "UTC")), "n": [0.3, 0.1, 0.2], "s": ["c", "a", "b"]}
        )
        ds = sx.open(stamps)
        for field, cut in (("t", "1970-01-01T00:00:02Z"), ("n", 0.2), ("s", "b")):
            first, second = ds.split(time=field, at=cut)
            assert (values(first, "n"), values(second, "n")) == ([0.1], [0.2, 0.3])

    @pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
    def test_a_time_has_a_zone_exactly_if_the_field_has_one(self, zone: str | None) -> None:
        here = dt.timezone(dt.timedelta(hours=2)) if zone else None
        times = [dt.datetime(2024, 7, 1, hour, tzinfo=here) for hour in range(6)]
        ds = sx.open(pa.table({"t": pa.array(times, pa.timestamp("us", zone))}))
        text = "2024-07-01T02:00" + ("+02:00" if zone else "")
        for cut in (times[2], text, np.array([text]), [times[2]]):
            assert [len(part) for part in ds.split(time="t", at=cut)] == [2, 4]
        other = times[2].replace(tzinfo=None if zone else dt.UTC)
        for wrong in (other, other.isoformat(), 4, 4.5, np.int64(4), np.datetime64("NaT", "s"), True, float("nan")):
            with pytest.raises(ArgumentError, match="for at"):
                ds.split(time="t", at=wrong)
        for midnight in (dt.date(2024, 7, 1), np.datetime64("2024-07-01"), "2024-07-01"):
            if zone:
                with pytest.raises(ArgumentError, match="zone"):
                    ds.split(time="t", at=midnight)
            else:
                assert [len(part) for part in ds.split(time="t", at=midnight)] == [0, 6]

    def test_cut_at_an_array(self, ds: sx.Dataset) -> None:
        assert [len(part) for part in ds.split(time="x", at=np.array([5, 10]))] == [5, 5, 190]
        assert [len(part) for part in ds.split(time="x", at=np.array(5))] == [5, 195]

    def test_wrong_arguments(self, ds: sx.Dataset) -> None:
        for options, message in (
            ({"at": "2024"}, r"expected time= together with at="),
            ({"within": "label"}, r"expected time= together with within="),
            ({"time": "date", "seed": 1}, r"expected no seed=.*within= cuts every group"),
            ({"time": "x", "at": ["3", 2]}, "expected times that ascend"),
            ({"time": "x", "at": "yesterday"}, "expected a time of the type int64 for at, got 'yesterday'"),
        ):
            with pytest.raises(ArgumentError, match=message):
                ds.split(**options)
        with pytest.raises(ArgumentError, match="expected neither shares"):
            ds.split(0.5, time="x", at=3)
        with pytest.raises(ArgumentError, match="expected a date for at"):
            sx.open(samples()).split(time="date", at=dt.datetime(2024, 1, 1, 5))
        with pytest.raises(SchemaError, match=r"for stratify, got uint8\[4, 4\] - at field image"):
            sx.open(samples()).split(0.5, stratify="image")
        with pytest.raises(FieldError, match="did you mean 'patient'"):
            ds.split(0.5, group="patent")
        with pytest.raises(ArgumentError, match=r"expected an array of 200 values for group, got shape \(3,\)"):
            ds.split(0.5, group=np.arange(3))


class TestSampling:
    def test_classes_are_drawn_equally_often(self, ds: sx.Dataset) -> None:
        view = ds.balanced("label", 90)
        assert counts(view, "label") == {"a": 30, "b": 30, "c": 30}
        assert "balanced by label" in repr(view) and len(ds.balanced("label")) == 200
        assert len({*values(view.where("label = 'a'"))}) == 30 and len({*values(view.where("label = 'c'"))}) == 10

    def test_weights_of_a_field_and_of_an_array(self, ds: sx.Dataset) -> None:
        found = counts(ds.weighted("weight", 600, seed=1), "weight")
        assert 0.0 not in found and abs(found[3.0] - 300) <= 2 and abs(found[1.0] - 100) <= 2
        array = np.arange(200) % 4
        assert values(ds.weighted(array, 50, seed=1)) == values(ds.weighted("weight", 50, seed=1))
        once = values(ds.weighted("weight", replacement=False))
        assert len(once) == 150 == len({*once}) and all(one % 4 for one in once)

    @pytest.mark.parametrize(
        "make",
        [
            lambda ds: ds.balanced("label", 64),
            lambda ds: ds.weighted("weight", 64),
            lambda ds: ds.weighted("weight", 64, replacement=False),
            lambda ds: ds.balanced("label", 100).take(64),
        ],
    )
    @pytest.mark.parametrize("shuffle", [False, True])
    def test_run_is_resumed_with_other_ranks(self, make: Any, shuffle: bool) -> None:
        ds = sx.open(samples())

        def loader(**options: Any) -> sx.Loader:
            return sx.Loader(make(ds), shuffle=shuffle, epochs=3, fields=["x"], **options)

        alone = [batch.x.tolist() for batch in loader(batch_size=8, rank=0, world_size=1)]
        epochs = [sorted(itertools.chain(*alone[k : k + 8])) for k in (0, 8, 16)]
        assert epochs[0] != epochs[1] != epochs[2]
        first = loader(batch_size=8, rank=0, world_size=1)
        taken = [batch.x.tolist() for batch in itertools.islice(first, 11)]
        assert taken == alone[:11]
        rest = []
        for rank in (0, 1):
            resumed = loader(batch_size=4, rank=rank, world_size=2)
            resumed.load_state_dict(first.state_dict())
            rest.append([batch.x.tolist() for batch in resumed])
        assert [a + b for a, b in zip(*rest, strict=True)] == alone[11:]

    @pytest.mark.parametrize("shuffle", [False, True])
    def test_origin_has_the_numbers_in_the_dataset_that_is_drawn_from(self, shuffle: bool) -> None:
        ds = sx.open(samples())
        for base in (ds, ds[50:150], ds.sort("weight")):
            for view in (base.balanced("label", 32), base.weighted("weight", 32)):
                for batch in sx.Loader(view, 16, shuffle=shuffle, epochs=2, fields=["x"]):
                    assert base[batch.origin.rows]["x"].tolist() == batch.x.tolist()

    def test_worker_processes_draw_the_same(self) -> None:
        view = sx.open(samples()).weighted("weight", 40)
        batches = [[b.x.tolist() for b in sx.Loader(view, 8, epochs=2)]]
        with sx.Loader(view, 8, epochs=2, workers=1, worker_type="process") as loader:
            batches.append([b.x.tolist() for b in loader])
        assert batches[0] == batches[1]

    def test_samples_that_values_choose_are_the_same_in_every_epoch(self) -> None:
        ds = sx.open(samples())
        views = [
            ds.balanced("label").where("x >= 100"),
            ds.weighted("weight").filter(lambda sample: sample.x >= 100),
            ds.balanced("label").sort("x", descending=True)[:20],
            ds.balanced("label").split(time="x", at=100)[1],
            ds.balanced("label").split(time="x", at=100)[1].weighted("weight"),
        ]
        for view in views:
            found = [batch.x.tolist() for batch in sx.Loader(view, len(view), epochs=3, fields=["x"])]
            assert len(found) == 3 and min(itertools.chain(*found)) >= 100
        uneven = ds.weighted((np.arange(200) % 5 == 0) * 1.0, 90).balanced("label", 30)
        for batch in sx.Loader(uneven, 30, epochs=3, fields=["label"]):
            assert {batch.label.count(one) for one in batch.label} == {15}

    def test_batches_by_tokens_of_draws(self) -> None:
        ds = sx.open([{"x": k, "ids": np.arange(k % 7 + 1), "w": float(k % 3)} for k in range(60)])
        epochs = []
        for _ in range(2):
            loader = sx.Loader(ds.weighted("w"), max_tokens=20, epochs=2, fields=["x", "ids"], length_of="ids")
            epochs.append([batch.x.tolist() for batch in loader])
        assert epochs[0] == epochs[1] and sum(map(len, epochs[0])) == 120
        assert all(x % 3 for batch in epochs[0] for x in batch)

    def test_state_of_other_weights_is_refused(self, ds: sx.Dataset) -> None:
        state = sx.Loader(ds.weighted("weight", 40), 8).state_dict()
        other = np.ones(200)
        with pytest.raises(sx.ShardexError, match="expected the state of a run over the same data"):
            sx.Loader(ds.weighted(other, 40), 8).load_state_dict(state)

    def test_wrong_arguments(self, ds: sx.Dataset) -> None:
        for weights, message in (
            ([1.0, 2.0], r"a weight for each of 200 samples, got shape \(2,\)"),
            (np.full(200, -1.0), r"weights of 0 or more, got -1.0 - at sample 0"),
            (np.zeros(200), "at least one is above 0"),
            ([np.nan] * 200, "0 or more, got nan"),
            (["a"] * 200, "expected a field or 200 numbers"),
        ):
            with pytest.raises(ArgumentError, match=message):
                ds.weighted(weights)  # type: ignore[arg-type]
        with pytest.raises(SchemaError, match=r"field of numbers for weighted, got .*string - at field label"):
            ds.weighted("label")
        with pytest.raises(ArgumentError, match="length of at most 150 without replacement"):
            ds.weighted("weight", 151, replacement=False)
        with pytest.raises(ArgumentError, match="to draw 3 from, got an empty one"):
            ds.take(0).balanced("label", 3)
        assert len(ds.take(0).balanced("label")) == len(ds.take(0).weighted("weight")) == 0
