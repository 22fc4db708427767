"""Views that users type first: columns, head, sort, rename, drop, split, and their text."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.errors import ArgumentError, FieldError, FormatError, SchemaError

DATA = [{"x": k, "name": f"n{k % 3}", "v": np.full(2, k, "f4")} for k in range(10)]


@pytest.fixture(params=["list", "arrow", "jsonl", "parquet"])
def ds(request: pytest.FixtureRequest, tmp_path: Path) -> sx.Dataset:
    if request.param == "list":
        return sx.open(DATA)
    return sx.write(tmp_path / "d", DATA, format=request.param)


# -- columns and samples ----------------------------------------------------------------------------------------


def test_a_field_name_gives_its_column(ds: sx.Dataset) -> None:
    assert ds["x"].tolist() == list(range(10)) and ds["name"][:4] == ["n0", "n1", "n2", "n0"]
    assert ds[::-1]["x"].tolist() == list(range(9, -1, -1))
    assert np.shape(ds["v"]) == (10, 2)
    assert len(ds[:0]["x"]) == 0


def test_an_unknown_column_names_the_nearest_field_and_get(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", [{"id": "a1", "station": "s"}], key="id")
    with pytest.raises(FieldError, match=r"fields id, station, got 'statoin': did you mean 'station'\?; .* get\("):
        ds["statoin"]
    with pytest.raises(FieldError, match=r"expected one of the fields x, name, v, got 'key'$"):
        sx.open(DATA)["key"]
    with pytest.raises(FieldError, match="got 'x'"):
        sx.open(DATA).select("name")["x"]


def test_an_unknown_field_of_a_sample_is_named_with_the_nearest() -> None:
    sample = sx.open(DATA)[0]
    with pytest.raises(KeyError, match=r"fields x, name, v, got 'nam': did you mean 'name'\?"):
        sample["nam"]
    with pytest.raises(AttributeError, match="did you mean 'name'"):
        sample.nam  # noqa: B018
    assert sample.get("nam") is None and "nam" not in sample


def test_head_is_a_list_of_the_first_samples(ds: sx.Dataset) -> None:
    assert [one.x for one in ds.head()] == [0, 1, 2, 3, 4]
    assert [one.x for one in ds[::-1].head(2)] == [9, 8]
    assert len(ds.head(100)) == 10 and ds[:0].head() == []
    assert isinstance(ds.head(1)[0], sx.DictSample)


# -- fields ---------------------------------------------------------------------------------------------------


def test_select_and_drop_take_names_or_a_list(ds: sx.Dataset) -> None:
    assert ds.select(["name", "x"]).fields == ds.select("name", "x").fields == ["name", "x"]
    assert ds.drop("x").fields == ds.drop(["x"]).fields == ["name", "v"]
    assert ds.drop("x", "v")[1] == {"name": "n1"}
    with pytest.raises(FieldError, match="'nam': did you mean 'name'"):
        ds.drop("nam")
    with pytest.raises(ArgumentError, match="expected names of fields, got 3"):
        ds.select(3)  # type: ignore[arg-type]


def test_rename(ds: sx.Dataset) -> None:
    renamed = ds[2:6].rename({"x": "number"}, name="label")
    assert renamed.fields == ["number", "label", "v"] and renamed.features["label"] == ds.features["name"]
    assert renamed[0].number == 2 and renamed["label"][0] == "n2"
    assert len(renamed.where("number > 3 AND label = 'n1'")) == 1
    assert renamed.read([1], ["label"]).names == ["label"]
    assert renamed.to_arrow().column_names == ["number", "label", "v"]
    assert next(renamed.select("v", "number").ordered(3)).number.tolist() == [2, 3, 4]
    assert pickle.loads(pickle.dumps(renamed))[1].number == 3
    assert sx.Loader(renamed, 4).dataset.fingerprint == renamed.fingerprint != ds[2:6].fingerprint


def test_fields_can_change_places_by_rename() -> None:
    swapped = sx.open([{"a": 1, "b": 2}]).rename(a="b", b="a")
    assert swapped[0] == {"b": 1, "a": 2}


def test_rename_keeps_keys_and_can_be_written(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", [{"id": "a", "x": 1}, {"id": "b", "x": 2}], key="id")
    assert ds.rename(x="y").get("b") == {"id": "b", "y": 2}
    assert sx.write(tmp_path / "e", ds.rename(x="y"))[0] == {"id": "a", "y": 1}


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"nope": "y"}, "expected one of the fields x, name, v, got 'nope'"),
        ({"x": "name"}, "expected different field names, got 'name' twice"),
        ({"x": ""}, "expected a field name, got ''"),
    ],
)
def test_wrong_names_raise(names: dict[str, str], message: str) -> None:
    with pytest.raises(sx.ShardexError, match=message):
        sx.open(DATA).rename(names)


# -- order ----------------------------------------------------------------------------------------------------


def test_sort_is_stable_in_both_directions(ds: sx.Dataset) -> None:
    assert ds.sort("name")["x"].tolist() == [0, 3, 6, 9, 1, 4, 7, 2, 5, 8]
    assert ds.sort("name", descending=True)["x"].tolist() == [2, 5, 8, 1, 4, 7, 0, 3, 6, 9]
    assert ds[::-1].sort("name")["x"].tolist() == [9, 6, 3, 0, 7, 4, 1, 8, 5, 2]
    assert ds[::-1].sort("name", "x")["x"].tolist() == [0, 3, 6, 9, 1, 4, 7, 2, 5, 8]
    assert len(ds[:0].sort("x")) == 0


def test_sort_puts_none_and_nan_last(tmp_path: Path) -> None:
    values = [2.0, None, float("nan"), 3.0, 1.0]
    ds = sx.write(tmp_path / "d", [{"v": v, "k": k} for k, v in enumerate(values)], {"v": float | None, "k": int})
    assert ds.sort("v")["k"].tolist() == [4, 0, 3, 2, 1]
    assert ds.sort("v", descending=True)["k"].tolist() == [3, 0, 4, 2, 1]


def test_extracted_columns_sort_and_stay_after_rename(tmp_path: Path) -> None:
    samples = [{"txt": f"t{k}", "json": {"width": -k}} for k in range(4)]
    sx.write(tmp_path / "d", samples, {"txt": str, "json": dict}, format="tar")
    ds = sx.index(tmp_path / "d", attributes=["width"])
    assert ds.sort("width")["txt"] == ["t3", "t2", "t1", "t0"]
    renamed = ds.rename(txt="text")
    assert renamed.where("width < -2")[0].text == "t3" and renamed.sort("width")["text"][0] == "t3"


def test_sort_by_a_field_without_an_order_raises() -> None:
    ds = sx.open([{"v": np.zeros(2), "j": {"a": 1}}])
    for name in ("v", "j"):
        with pytest.raises(SchemaError, match=f"expected a field of numbers, text.* at field {name}; .*ORDER BY"):
            ds.sort(name)
    with pytest.raises(ArgumentError, match="at least one field to sort by"):
        ds.sort()
    with pytest.raises(FieldError, match="got 'w'"):
        ds.sort("w")


def test_split_takes_a_list_names_and_a_seed(ds: sx.Dataset) -> None:
    assert [len(part) for part in ds.split([0.8, 0.2])] == [8, 2]
    train, test = ds.split(0.8, seed=3)
    again, _ = ds.split([0.8, 0.2], seed=3)
    assert train["x"].tolist() == again["x"].tolist() != list(range(8))
    assert sorted([*train["x"].tolist(), *test["x"].tolist()]) == list(range(10))
    named = ds.split({"train": 0.5, "val": 0.3, "test": 0.2})
    assert isinstance(named, sx.DatasetDict) and named.num_rows == {"train": 5, "val": 3, "test": 2}
    with pytest.raises(ArgumentError, match="named shares that add up to 1"):
        ds.split({"train": 0.5})
    with pytest.raises(ArgumentError, match="shares from 0 to 1"):
        ds.split([8, 2])


def test_datasets_are_added(ds: sx.Dataset) -> None:
    both = ds[:2] + ds[5:7]
    assert both["x"].tolist() == sx.concat([ds[:2], ds[5:7]])["x"].tolist() == [0, 1, 5, 6]
    with pytest.raises(TypeError):
        ds + DATA  # type: ignore[operator]
    with pytest.raises(SchemaError, match="expected the fields of the first dataset"):
        ds + sx.open([{"y": 1}])
    assert sx.join([ds.select("x"), ds.select("name")])[1] == {"x": 1, "name": "n1"}


def test_methods_of_all_splits() -> None:
    splits = sx.open(DATA).split({"train": 0.5, "test": 0.5})
    changed = splits.drop("v").rename(x="number").sort("number", descending=True)
    assert changed["test"][0] == {"number": 9, "name": "n0"}
    with pytest.raises(AttributeError, match="expected a split for 'head'"):
        splits.head()
    assert sx.DatasetDict(train=sx.open(DATA)).head(1)[0].x == 0


# -- text -----------------------------------------------------------------------------------------------------


def test_repr_says_what_a_view_is(tmp_path: Path) -> None:
    ds = sx.write(tmp_path / "d", [{"x": k} for k in range(5000)])
    end = f": x int64 - arrow, 1 shard, {tmp_path / 'd'})"
    shown = {
        "5,000 samples": ds,
        "10 of 5,000 samples": ds[:10],
        "5,000 samples, shuffled": ds.shuffle(),
        "10 of 5,000 samples, shuffled": ds.shuffle(seed=1).take(10),
        "3 of 5,000 samples, where x < 3": ds.where("x <\n 3"),
        "5,000 samples, sorted by x, descending": ds.sort("x", descending=True),
        "2,500 of 5,000 samples, step 2": ds[::2],
        "1 of 5,000 samples, filtered by is_seven": ds.filter(is_seven),
        "5,000 samples, mapped by same": ds.map(same),
    }
    assert {text: repr(view) for text, view in shown.items()} == {text: f"Dataset({text}{end}" for text in shown}
    assert repr(pickle.loads(pickle.dumps(ds.where("x < 3")))) == repr(ds.where("x < 3"))
    assert "mixed from 0, 1" in repr(sx.mix([ds, ds]))


def is_seven(sample: Any) -> bool:
    return bool(sample.x == 7)


def same(sample: Any) -> Any:
    return sample


def test_iterators_say_what_they_iterate_over() -> None:
    ds = sx.open(DATA).select("x")
    assert repr(ds.ordered(4)) == f"Iterator(batches of 4 samples, in order, of {ds})"
    assert repr(ds.shuffled(4)) == f"Iterator(batches of 4 samples, shuffled, of {ds})"
    assert repr(iter(ds)) == f"Iterator(samples of {ds})"
    batches = ds.ordered(4)
    assert len(next(batches)) == 4 and [len(batch) for batch in batches] == [4, 2]


def test_dir_shows_what_users_use() -> None:
    ds = sx.open(DATA)
    public = {name for name in dir(ds) if not name.startswith("_")}
    assert {"where", "sort", "head", "fields", "to_pandas"} <= public
    assert not public & {"advise", "sql_columns", "chunks", "through", "notes"}
    assert {"x", "name", "v"} <= {*dir(ds[0])} and {"x", "name"} <= {*dir(next(ds.ordered(2)))}
    assert ds._ipython_key_completions_() == ["x", "name", "v"]
    assert next(ds.ordered(2))._ipython_key_completions_() == ["x", "name", "v"]
    assert ds.read([0])._ipython_key_completions_() == ["x", "name", "v"]


def test_an_error_of_a_condition_names_the_sample() -> None:
    with pytest.raises(TypeError) as found:
        sx.open([{"x": 1}, {"x": None}]).filter(lambda sample: sample.x > 0)
    assert found.value.__notes__[0].endswith("at sample 1")


@pytest.mark.parametrize("good", [0, 1, 2, 60, 6000])
def test_samples_before_one_that_cannot_be_read_come_before_the_error(tmp_path: Path, good: int) -> None:
    lines = [f'{{"x": {k}}}' for k in range(good)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines, "{bad", '{"x": 1}'] + ['{"x": 2}'] * 100))
    ds, read = sx.open(tmp_path / "a.jsonl", schema={"x": int}), list[int]()
    with pytest.raises(FormatError, match=f"line {good + 1}, "):
        read.extend(sample.x for sample in ds)
    assert read == list(range(good))
    batches = ds.ordered(2)
    for k in range(good // 2):
        assert next(batches).x.tolist() == [2 * k, 2 * k + 1]
    with pytest.raises(FormatError, match=f"line {good + 1}, "):
        next(batches)
