"""Datasets of atdata: order, batches, random access, views, shards and exports."""

import os
import pickle
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow.lib import ArrowException

from shardex.compat import atdata
from shardex.errors import ShardexError, TruncatedShardError
from tests.compat.atdata.sample_classes import Label, Name, Picture, Size, picture, write_shards, write_tar
from tests.servers import web
from tests.servers.faulty import FaultyServer

__all__ = ["web"]

PICTURE: Any = Picture
COUNT = 10


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The pattern of three shards with 10 pictures."""
    return write_shards(tmp_path_factory.mktemp("pictures"), COUNT)


@pytest.fixture
def ds(pattern: str) -> atdata.Dataset[Any]:
    """The 10 pictures."""
    return atdata.Dataset[PICTURE](pattern)


def numbers(samples: Any) -> list[int]:
    return [one.number for one in samples]


def is_odd(sample: Any) -> bool:
    return bool(sample.number % 2)


# -- order and batches ----------------------------------------------------------------------------------------------


def test_ordered(ds: atdata.Dataset[Any]) -> None:
    assert list(ds) == list(ds.ordered()) == [picture(k) for k in range(COUNT)]
    assert len(ds) == COUNT and ds.head() == [picture(k) for k in range(5)] and ds.head(99) == list(ds)
    stream = ds.ordered()
    assert list(stream) == list(stream)


def test_batches_keep_the_last_partial_one(ds: atdata.Dataset[Any]) -> None:
    batches = list(ds.ordered(batch_size=4))
    assert [batch.number for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert batches[0].image.shape == (4, 2, 3) and type(batches[0]) is atdata.SampleBatch
    assert batches[0].sample_type is PICTURE
    with pytest.raises(ValueError, match="batch_size"):
        ds.ordered(0)


def test_shuffled_has_every_sample_once_in_another_order_each_time(ds: atdata.Dataset[Any]) -> None:
    stream = ds.shuffled(buffer_shards=2, buffer_samples=3)
    orders = {tuple(numbers(stream)) for _ in range(20)}
    assert {tuple(sorted(one)) for one in orders} == {tuple(range(COUNT))} and len(orders) > 10
    batches = list(ds.shuffled(100, 10_000, 3))
    assert [len(batch.samples) for batch in batches] == [3, 3, 3, 1]
    assert sorted(k for batch in batches for k in batch.number) == list(range(COUNT))


def test_many_epochs_and_shards_do_not_keep_files_open(ds: atdata.Dataset[Any]) -> None:
    for _ in range(5):
        list(ds.shuffled())
        ds.process_shards(len)
    assert len(ds._shards._opened) == 1


def test_shuffled_with_a_seed(ds: atdata.Dataset[Any]) -> None:
    """B3.8: there was no seed."""
    first, second = ds.shuffled(seed=3), ds.shuffled(seed=3)
    epochs = [numbers(first), numbers(first)]
    assert epochs == [numbers(second), numbers(second)] and epochs[0] != epochs[1]


# -- random access --------------------------------------------------------------------------------------------------


def test_select(ds: atdata.Dataset[Any]) -> None:
    assert numbers(ds.select([7, 0, 7, np.int64(3)])) == [7, 0, 7, 3] and ds.select([]) == []
    for wrong in ([COUNT], [-1], [0, 99]):
        with pytest.raises(IndexError, match=str(wrong[-1])):
            ds.select(wrong)


def test_positions_and_slices(ds: atdata.Dataset[Any]) -> None:
    """The original had neither; slices and lists of positions are lists, as of `select`."""
    assert [ds[k].number for k in (0, -1, np.int64(4))] == [0, 9, 4]
    assert numbers(ds[2:5]) == [2, 3, 4] and numbers(ds[::-4]) == [9, 5, 1] and numbers(ds[[-1, 0]]) == [9, 0]
    assert ds[7:7] == [] and ds[99:] == []
    for wrong in (COUNT, -COUNT - 1):
        with pytest.raises(IndexError, match=str(wrong)):
            _ = ds[wrong]
    odd = ds.filter(is_odd).map(lambda one: one.number)
    assert (odd[-1], odd[1:3], len(odd)) == (9, [3, 5], 5)


def test_conditions_are_asked_once_for_random_access(ds: atdata.Dataset[Any]) -> None:
    seen: list[int] = []

    def is_late(sample: Any) -> bool:
        seen.append(sample.number)
        return bool(sample.number > 5)

    view = ds.filter(is_late)
    assert [view[k].number for k in (0, 1, -1)] == [6, 7, 9]
    assert seen == [*range(COUNT), 6, 7, 9]


def test_data_loader_of_a_dataset(ds: atdata.Dataset[Any]) -> None:
    data = pytest.importorskip("torch.utils.data")
    batches = list(data.DataLoader(ds, batch_size=4, collate_fn=list))
    assert [numbers(batch) for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    batches = list(data.DataLoader(ds.shuffled(batch_size=4), batch_size=None))
    assert sorted(number for batch in batches for number in batch.number) == list(range(COUNT))


@pytest.mark.parametrize("kind", ["cut", "no tar", "missing"])
def test_shards_before_a_broken_one_come_first(kind: str, tmp_path: Path) -> None:
    """As from WebDataset, whose errors are those of tarfile; a shuffle of all samples needs all shards."""
    pattern = write_shards(tmp_path, COUNT)
    second = tmp_path / "data-000001.tar"
    if kind == "missing":
        second.unlink()
    else:
        second.write_bytes(second.read_bytes()[:3000] if kind == "cut" else b"no tar" * 1000)
    error: Any = FileNotFoundError if kind == "missing" else tarfile.TarError
    ds, seen = atdata.Dataset[PICTURE](pattern), list[int]()
    with pytest.raises(error, match="data-000001") as caught:
        seen.extend(one.number for one in ds.ordered())
    assert seen == [0, 1, 2, 3] and isinstance(caught.value, ShardexError)
    assert kind != "cut" or isinstance(caught.value, TruncatedShardError)
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args
    with pytest.raises(error):
        next(iter(ds.shuffled()))


def test_get(ds: atdata.Dataset[Any], pattern: str) -> None:
    keys = [one["__key__"] for one in ds._shards.all()]
    assert [ds.get(key) for key in keys[::-1]] == list(ds)[::-1]
    with pytest.raises(KeyError) as caught:
        ds.get("nowhere")
    assert isinstance(caught.value, atdata.SampleKeyError) and caught.value.key == "nowhere"


def test_get_and_select_read_only_what_they_need(ds: atdata.Dataset[Any]) -> None:
    """B3.2: both read all samples before the wanted one."""
    seen: list[int] = []

    def noted(sample: Any) -> Any:
        seen.append(sample.number)
        return sample

    mapped = ds.map(noted)
    mapped.select([8])
    mapped.get(next(iter(ds._shards.all()))["__key__"])
    assert len(mapped) == COUNT and seen == [8, 0]


# -- views ----------------------------------------------------------------------------------------------------------


def test_filter_and_map_apply_everywhere(ds: atdata.Dataset[Any]) -> None:
    """B3.3: batches ignored both."""
    view = ds.filter(is_odd).map(lambda one: one.number * 10)
    assert list(view) == view.head(9) == [10, 30, 50, 70, 90] and len(view) == 5
    assert [batch.samples for batch in view.ordered(2)] == [[10, 30], [50, 70], [90]]
    assert sorted(k for batch in view.shuffled(batch_size=2) for k in batch.samples) == list(view)
    assert view.select([4, 0]) == [90, 10]
    with pytest.raises(IndexError, match="0 to 4"):
        view.select([5])


def test_steps_apply_in_order(ds: atdata.Dataset[Any]) -> None:
    """A condition after a function sees its results."""
    assert list(ds.map(lambda one: one.number).filter(lambda k: k > 7).map(lambda k: -k)) == [-8, -9]
    assert numbers(ds.filter(is_odd).filter(lambda one: one.number > 4)) == [5, 7, 9]


def test_batches_of_filtered_samples_have_columns(ds: atdata.Dataset[Any]) -> None:
    batch = next(iter(ds.filter(is_odd).ordered(3)))
    assert batch.number == [1, 3, 5] and batch.image[:, 0, 0].tolist() == [1, 3, 5]


def test_get_of_a_filtered_sample(ds: atdata.Dataset[Any]) -> None:
    keys = [one["__key__"] for one in ds._shards.all()]
    odd = ds.filter(is_odd)
    assert odd.get(keys[3]) == picture(3)
    with pytest.raises(atdata.SampleKeyError):
        odd.get(keys[2])


def test_functions_are_called_when_samples_are_read(ds: atdata.Dataset[Any]) -> None:
    failing = ds.map(lambda one: 1 / (one.number - 6))
    with pytest.raises(ZeroDivisionError) as caught:
        list(failing)
    assert "data-000001.tar" in caught.value.__notes__[0]
    with pytest.raises(TypeError, match="function"):
        ds.map(3)  # type: ignore[arg-type]


def test_as_type_keeps_filter_and_map(ds: atdata.Dataset[Any]) -> None:
    """B3.4: it dropped both."""
    assert list(ds.filter(is_odd).as_type(Label)) == [Label(f"label {k}") for k in (1, 3, 5, 7, 9)]
    renamed = ds.map(lambda one: PICTURE(one.image, "x", one.number)).as_type(Label)
    assert renamed.head(1) == [Label("x")]
    assert renamed.filter(lambda one: one.label == "y").head() == []


def test_as_type_twice_and_through_chains(ds: atdata.Dataset[Any]) -> None:
    """B3.4: the second as_type forgot the first, and chains of lenses were not found."""
    assert ds.as_type(Label).as_type(Name).head(1) == [Name("LABEL 0")]
    sizes = ds.as_type(Label).as_type(Size)
    assert sizes.sample_type is Size and sizes.head(1) == [Size(7)]
    assert next(iter(sizes.ordered(3))).size == [7, 7, 7]


def test_as_type_from_dict_samples(pattern: str, ds: atdata.Dataset[Any]) -> None:
    untyped = atdata.Dataset[atdata.DictSample](pattern)
    assert list(untyped.as_type(PICTURE)) == list(ds)
    assert untyped.as_type(Label).head(1) == [Label("label 0")]
    with pytest.raises(TypeError, match="name"):
        untyped.as_type(Name).head()


def test_as_type_by_field_names_before_chains(ds: atdata.Dataset[Any]) -> None:
    @atdata.packable
    class Part:
        number: int
        more: str = "default"

    assert ds.as_type(Part).head(1) == [Part(0)]
    assert list(ds.as_type(PICTURE)) == list(ds)


def test_as_type_without_a_lens(ds: atdata.Dataset[Any]) -> None:
    with pytest.raises(atdata.LensNotFoundError, match="no lens from Picture to Size"):
        ds.as_type(Size)
    with pytest.raises(ValueError, match="no lens from int to Size"):
        ds.map(lambda one: one.number).as_type(Size).head()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["odd", "above", "same", "type", "double"]), max_size=5), st.integers(1, 4))
def test_views_agree_with_plain_python(ds: atdata.Dataset[Any], steps: list[str], size: int) -> None:
    view: Any = ds
    plain = [picture(k) for k in range(COUNT)]
    for step in steps:
        if step == "odd":
            view, plain = view.filter(is_odd), [one for one in plain if is_odd(one)]
        elif step == "above":
            view, plain = view.filter(lambda one: one.number > 2), [one for one in plain if one.number > 2]
        elif step == "same":
            view = view.map(lambda one: one)
        elif step == "type":
            view = view.as_type(PICTURE)
        else:
            view, plain = view.map(_doubled), [_doubled(one) for one in plain]
    assert list(view) == plain and len(view) == len(plain)
    assert [one for batch in view.ordered(size) for one in batch.samples] == plain
    assert sorted(numbers(view.shuffled())) == sorted(numbers(plain))
    assert view.select(range(len(plain))) == plain


def _doubled(one: Any) -> Any:
    return PICTURE(one.image, one.label, 2 * one.number + 1)


# -- what it is -----------------------------------------------------------------------------------------------------


def test_modules_that_importing_the_package_imports() -> None:
    names = ["cli", "dataset", "index", "manifest", "promote", "search", "stores", "_helpers", "_hf_api", "_sources"]
    program = "import sys, shardex.compat.atdata as a; print(*[n for n in sys.argv[1:] if not hasattr(a, n)])"
    assert subprocess.check_output([sys.executable, "-c", program, *names], text=True).split() == []


def test_sample_type_needs_a_subscript(pattern: str) -> None:
    with pytest.raises(AttributeError, match=r"Dataset\[T\]"):
        _ = atdata.Dataset(pattern).sample_type

    class Pictures(atdata.Dataset[PICTURE]):
        pass

    assert Pictures(pattern).sample_type is PICTURE and Pictures(pattern).head(1) == [picture(0)]
    with pytest.raises(TypeError, match="source"):
        atdata.Dataset[PICTURE]()


def test_shards_and_description(ds: atdata.Dataset[Any], pattern: str) -> None:
    shards = [pattern.replace("{000000..000002}", f"{k:06d}") for k in range(3)]
    assert ds.list_shards() == list(ds.shards) == shards and ds.url == pattern
    with pytest.warns(DeprecationWarning, match="list_shards"):
        assert ds.shard_list == shards
    assert list(ds.schema) == ds.column_names == ["image", "label", "number"] and ds.schema["label"] is str
    untyped = atdata.Dataset[atdata.DictSample](url=pattern)
    assert untyped.schema == {"_data": dict} and untyped.column_names == []
    assert ds.describe() == {
        "sample_type": "Picture",
        "fields": ds.schema,
        "num_shards": 3,
        "shards": shards,
        "url": pattern,
        "metadata": None,
    }
    assert isinstance(ds.source, atdata.URLSource) and isinstance(ds.source, atdata.DataSource)
    assert ds.batch_type([picture(0)]).sample_type is PICTURE
    assert repr(ds) == f"Dataset[Picture]({pattern!r})" and repr(atdata.Dataset("a.tar")) == "Dataset('a.tar')"
    assert repr(ds.as_type(Label)) == f"Dataset[Label]({pattern!r})"


def test_metadata(ds: atdata.Dataset[Any], pattern: str, tmp_path: Path, web: FaultyServer) -> None:
    (tmp_path / "meta.msgpack").write_bytes(msgspec.msgpack.encode({"made": "here"}))
    web.files["meta.msgpack"] = (tmp_path / "meta.msgpack").read_bytes()
    for url in (str(tmp_path / "meta.msgpack"), f"file://{tmp_path}/meta.msgpack", web.url() + "/meta.msgpack"):
        described = atdata.Dataset[PICTURE](pattern, url)
        assert described.metadata == described.filter(is_odd).metadata == {"made": "here"}
    assert ds.content_metadata is None
    ds.content_metadata = {"instrument": "camera"}
    assert ds.map(str).content_metadata == {"instrument": "camera"}
    with pytest.raises(OSError, match="nowhere"):
        _ = atdata.Dataset[PICTURE](pattern, str(tmp_path / "nowhere")).metadata


def test_missing_files_are_found_missing_when_they_are_read(tmp_path: Path) -> None:
    missing = atdata.Dataset[PICTURE](str(tmp_path / "nowhere-{0..2}.tar"))
    assert len(missing.list_shards()) == 3
    with pytest.raises(FileNotFoundError, match="nowhere-0"):
        next(iter(missing))


def test_empty_tar(tmp_path: Path) -> None:
    empty = atdata.Dataset[PICTURE](write_tar(tmp_path / "empty.tar", []))
    assert list(empty) == list(empty.ordered(4)) == [] and len(empty) == 0 and empty.to_dict() == {}
    mixed = atdata.Dataset[PICTURE](f"{tmp_path}/{{empty,full}}.tar")
    write_tar(tmp_path / "full.tar", [picture(1)])
    assert list(mixed) == [picture(1)]


def test_a_shard_that_is_written_again_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    again = atdata.Dataset[PICTURE](write_tar(path, [picture(1)]))
    assert numbers(again) == [1] and len(again) == 1
    path.unlink()
    write_tar(path, map(picture, range(3)))
    assert numbers(again) == [0, 1, 2] and len(again) == 3


def test_other_files_in_a_tar(tmp_path: Path) -> None:
    import webdataset

    with webdataset.TarWriter(str(tmp_path / "a.tar")) as out:
        out.write({**picture(0).as_wds, "json": {"x": 1}})
    with webdataset.TarWriter(str(tmp_path / "b.tar")) as out:
        out.write({"__key__": "k", "json": {"x": 1}})
    assert list(atdata.Dataset[PICTURE](str(tmp_path / "a.tar"))) == [picture(0)]
    with pytest.raises(ValueError, match="msgpack"):
        list(atdata.Dataset[PICTURE](str(tmp_path / "b.tar")))


def test_compressed_tars(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar.gz", map(picture, range(3)))
    assert numbers(atdata.Dataset[PICTURE](path)) == [0, 1, 2]
    renamed = str(Path(path).rename(tmp_path / "b.tar"))
    write_tar(tmp_path / "c.tar", [picture(3)])
    assert numbers(atdata.Dataset[PICTURE](renamed)) == [0, 1, 2]
    both = atdata.Dataset[PICTURE](f"{tmp_path}/{{b,c}}.tar")
    assert numbers(both) == [0, 1, 2, 3] and numbers(both.select([3, 1])) == [3, 1]


def test_wrap(ds: atdata.Dataset[Any]) -> None:
    raw = picture(3).as_wds
    assert ds.wrap(raw) == picture(3) and ds.as_type(Label).wrap(raw) == Label("label 3")
    assert ds.filter(lambda one: False).map(str).wrap(raw) == picture(3)
    batch = ds.wrap_batch({"msgpack": [raw["msgpack"]] * 2})
    assert batch.number == [3, 3] and ds.as_type(Label).wrap_batch({"msgpack": [raw["msgpack"]]}).label == ["label 3"]
    for wrong in ({"__key__": "a"}, {"msgpack": "text"}):
        with pytest.raises(ValueError, match="msgpack"):
            ds.wrap(wrong)
    with pytest.raises(ValueError, match="msgpack"):
        ds.wrap_batch({})


# -- shards ---------------------------------------------------------------------------------------------------------


def test_process_shards(ds: atdata.Dataset[Any]) -> None:
    assert ds.process_shards(len) == dict(zip(ds.list_shards(), [4, 4, 2], strict=True))
    assert ds.process_shards(numbers, shards=ds.list_shards()[2:]) == {ds.list_shards()[2]: [8, 9]}
    assert ds.process_shards(len, shards=[]) == {}


def test_process_shards_sees_the_view(ds: atdata.Dataset[Any]) -> None:
    """B3.11: it forgot lens and filter."""
    view = ds.filter(is_odd).as_type(Label)
    assert view.process_shards(list) == {
        shard: [Label(f"label {k}") for k in some]
        for shard, some in zip(ds.list_shards(), [(1, 3), (5, 7), (9,)], strict=True)
    }


def test_process_shards_with_failures_and_a_checkpoint(ds: atdata.Dataset[Any], tmp_path: Path) -> None:
    shards, checkpoint = ds.list_shards(), tmp_path / "done.txt"
    failed: list[tuple[str, str]] = []
    calls: list[int] = []

    def work(samples: list[Any], bad: int) -> int:
        calls.append(samples[0].number)
        if samples[0].number == bad:
            raise RuntimeError("bad shard")
        return len(samples)

    def note(shard: str, error: Exception) -> None:
        failed.append((shard, str(error)))

    with pytest.raises(atdata.PartialFailureError, match="1 of 3") as caught:
        ds.process_shards(partial(work, bad=4), checkpoint=checkpoint, on_shard_error=note)
    error = caught.value
    assert (error.succeeded_shards, error.failed_shards) == ([shards[0], shards[2]], [shards[1]])
    assert error.results == {shards[0]: 4, shards[2]: 2} and failed == [(shards[1], "bad shard")]
    assert isinstance(error.errors[shards[1]], RuntimeError)
    assert checkpoint.read_text() == f"{shards[0]}\n{shards[2]}\n"
    calls.clear()
    assert ds.process_shards(partial(work, bad=-1), checkpoint=checkpoint) == {shards[1]: 4}
    assert calls == [4] and not checkpoint.exists()


def test_checkpoint_that_a_crash_cut_off(ds: atdata.Dataset[Any], tmp_path: Path) -> None:
    shards, checkpoint = ds.list_shards(), tmp_path / "done.txt"
    checkpoint.write_text(f"{shards[0]}\n{shards[1][:-3]}")
    with pytest.raises(atdata.PartialFailureError):
        ds.process_shards(lambda some: 1 // (some[0].number - 8), checkpoint=checkpoint)
    assert checkpoint.read_text() == f"{shards[0]}\n{shards[1][:-3]}\n{shards[1]}\n"


def test_process_shards_of_an_unknown_shard(ds: atdata.Dataset[Any]) -> None:
    with pytest.raises(atdata.PartialFailureError) as caught:
        ds.process_shards(len, shards=["nowhere.tar"])
    assert isinstance(caught.value.errors["nowhere.tar"], KeyError)


# -- other tools ----------------------------------------------------------------------------------------------------


def test_to_dict_and_pandas(ds: atdata.Dataset[Any], pattern: str) -> None:
    columns = ds.to_dict()
    assert columns["number"] == list(range(COUNT)) and columns["image"][3].shape == (2, 3)
    assert {name: len(column) for name, column in ds.to_dict(limit=3).items()} == dict.fromkeys(columns, 3)
    frame = ds.filter(is_odd).to_pandas(limit=2)
    assert frame.columns.tolist() == ["image", "label", "number"] and frame["number"].tolist() == [1, 3]
    untyped = atdata.Dataset[atdata.DictSample](pattern)
    assert untyped.to_pandas()["label"].tolist() == columns["label"] == untyped.to_dict()["label"]


def test_to_parquet(ds: atdata.Dataset[Any], tmp_path: Path) -> None:
    ds.to_parquet(tmp_path / "all.parquet")
    found = pd.read_parquet(tmp_path / "all.parquet")
    assert found["number"].tolist() == list(range(COUNT)) and [*found["image"][3][1]] == [3, 3, 3]
    ds.to_parquet(tmp_path / "part.parquet", lambda one: {"n": one.number}, maxcount=4, compression="zstd")
    assert sorted(os.listdir(tmp_path)) == ["all.parquet", *(f"part-{k:06d}.parquet" for k in range(3))]
    assert pd.read_parquet(tmp_path / "part-000002.parquet")["n"].tolist() == [8, 9]
    ds.filter(lambda one: False).to_parquet(tmp_path / "none.parquet")
    assert pd.read_parquet(tmp_path / "none.parquet").columns.tolist() == ["image", "label", "number"]


def test_failed_export_leaves_nothing(ds: atdata.Dataset[Any], tmp_path: Path) -> None:
    with pytest.raises(ArrowException, match="zip"):
        ds.to_parquet(tmp_path / "a.parquet", compression="no such zip")
    assert os.listdir(tmp_path) == []


# -- processes and threads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "workers"), [("fork", 2), pytest.param("spawn", 1, marks=pytest.mark.long)])
def test_workers_of_torch_divide_the_samples(ds: atdata.Dataset[Any], method: str, workers: int) -> None:
    from torch.utils.data import DataLoader, IterableDataset

    assert len(ds) == COUNT  # the parent has opened the files too
    stream = ds.filter(is_odd).ordered(batch_size=2)
    assert isinstance(stream, IterableDataset)
    loader = DataLoader(stream, batch_size=None, num_workers=workers, multiprocessing_context=method)
    assert sorted(k for batch in loader for k in batch.number) == [1, 3, 5, 7, 9]


def test_workers_of_torch_divide_one_shard(tmp_path: Path) -> None:
    from torch.utils.data import DataLoader

    one = atdata.Dataset[PICTURE](write_tar(tmp_path / "a.tar", map(picture, range(COUNT))))
    loader = DataLoader(one.shuffled(), batch_size=None, num_workers=2, multiprocessing_context="fork")
    epochs = [numbers(loader), numbers(loader)]
    assert [sorted(one) for one in epochs] == [list(range(COUNT))] * 2 and epochs[0] != epochs[1]


def test_pickled_datasets(ds: atdata.Dataset[Any]) -> None:
    assert len(ds) == COUNT
    view = ds.filter(is_odd).as_type(Label).as_type(Name)
    for one in (ds, view):
        assert list(pickle.loads(pickle.dumps(one))) == list(one)
    stream = pickle.loads(pickle.dumps(ds.shuffled(seed=1)))
    assert numbers(stream) == numbers(ds.shuffled(seed=1))


def test_threads_share_a_dataset(ds: atdata.Dataset[Any]) -> None:
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: (numbers(ds), numbers(ds.select([3])), len(ds)), range(20)):
            assert found == (list(range(COUNT)), [3], COUNT)
