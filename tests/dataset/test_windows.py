"""Windows of tokens against a model that concatenates lists and cuts them; in loaders; errors."""

from __future__ import annotations

import functools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import shardex as sx
from shardex.dataset import Dataset
from shardex.errors import ArgumentError, FieldError, RowError, SchemaError
from tests.resident_pages import PAGE, become_resident, evict, resident_pages
from tests.token_documents import FORMS, documents, opened, plain, sizes_of_documents

pytestmark = pytest.mark.filterwarnings("ignore:batch.mask is")  # the loss mask is batch["mask"] here

Sample = dict[str, list[int]]


# -- the model -----------------------------------------------------------------------------------------------------


def model(
    samples: list[dict[str, Any]],
    length: int,
    stride: int | None = None,
    *,
    offset: int = 0,
    across: bool = True,
    partial: bool = False,
    labels: bool = False,
) -> list[Sample]:
    """Return the windows of documents, by lists."""
    stride = stride or length
    streams = [[(int(t), int(m)) for one in samples for t, m in zip(one["tokens"], one["mask"], strict=True)]]
    if not across:
        streams = [list(zip(one["tokens"].tolist(), one["mask"].tolist(), strict=True)) for one in samples]
    found = []
    need = length + labels
    for stream in streams:
        begin = end = offset  # end: of the window before
        while len(window := stream[begin : begin + need]) > labels:
            if len(window) < need and (not partial or end == len(stream)):
                break
            found.append(window)
            begin, end = begin + stride, begin + len(window)
    return [as_sample(window, labels) for window in found]


def as_sample(window: list[tuple[int, int]], labels: bool) -> Sample:
    tokens, masks = [token for token, _ in window], [mask for _, mask in window]
    if not labels:
        return {"tokens": tokens, "mask": masks}
    return {"inputs": tokens[:-1], "labels": tokens[1:], "mask": masks[:-1]}


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(FORMS),
    sizes_of_documents,
    st.integers(1, 12),
    st.one_of(st.none(), st.integers(1, 15)),
    st.integers(0, 5),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_windows_are_those_of_the_model(
    form: str, sizes: list[int], length: int, stride: int | None, offset: int, across: bool, partial: bool, labels: bool
) -> None:
    options: dict[str, Any] = {"offset": offset, "across": across, "partial": partial, "labels": labels}
    with opened(documents(sizes), form) as (ds, samples):
        view, expected = ds.windows(length, stride, **options), model(samples, length, stride, **options)
        assert plain(view) == expected and len(view) == len(expected)
        assert [plain(view[[k]])[0] for k in range(0, len(view), 5)] == expected[::5]
        view.advise(np.arange(len(view)))
        order = np.random.default_rng(0).integers(0, max(1, len(view)), 2 * len(view))
        assert plain(view[order]) == [expected[k] for k in order]
        for name in view.fields:
            assert plain(view.select(name)) == [{name: sample[name]} for sample in expected]


def test_a_partial_window_adds_tokens_that_no_window_has() -> None:
    ds = sx.open([{"tokens": np.arange(8)}])
    assert [s["tokens"].tolist() for s in ds.windows(4, 2, partial=True)] == [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 7]]
    assert [s["tokens"].tolist() for s in ds.windows(3, 2, partial=True)][-1] == [6, 7]
    assert ds.windows(3, 2, partial=True).features["tokens"] == sx.Array("int64", (None,))
    assert len(ds.windows(3, 8, partial=True)) == 1  # the second would begin behind the end


def test_every_token_but_the_first_is_a_label_once() -> None:
    ds = sx.open([{"tokens": np.arange(k, k + 5)} for k in range(0, 50, 5)])
    for partial in (False, True):
        labels = [token for sample in ds.windows(7, labels=True, partial=partial) for token in sample["labels"]]
        assert labels == list(range(1, 50))
    assert len(sx.open([{"tokens": np.arange(1)}]).windows(4, labels=True, partial=True)) == 0


# -- fields ----------------------------------------------------------------------------------------------------------


def test_fields_that_are_not_per_token_are_left_out(tmp_path: Path) -> None:
    sample = {"ids": np.arange(5), "text": "a", "image": np.zeros((2, 2)), "embedding": np.zeros(3), "n": 1}
    schema = {"ids": sx.Array("int64", (None,)), "text": str, "image": sx.Array("float64", (2, 2))}
    ds = sx.write(str(tmp_path / "d"), [sample], schema={**schema, "embedding": sx.Array("float64", (3,)), "n": int})
    assert ds.windows(2, field="ids").fields == ["ids"]
    with pytest.raises(
        ArgumentError, match="expected the field of tokens, one of ids, embedding; choose it with field="
    ):
        ds.windows(2)
    assert ds.select("ids", "text").windows(2).fields == ["ids"]
    assert ds.rename(ids="tokens").windows(2).fields == ["tokens"]


@sx.packable
class Document:
    """Typed tokens; the class does not say how many dimensions they have."""

    tokens: NDArray[np.uint16]
    mask: NDArray[np.uint8]


@sx.packable
class WideDocument:
    """Tokens of another type than in the files."""

    tokens: NDArray[np.int64]


def test_typed_documents(tmp_path: Path) -> None:
    ds = sx.write(str(tmp_path / "d"), documents([5, 6]), format="tokens")
    typed = ds.as_type(Document)[::-1]
    assert plain(typed.windows(3)) == plain(ds[::-1].windows(3)) and plain(typed.pack(4)) == plain(ds[::-1].pack(4))
    with pytest.raises(SchemaError, match="expected a field of arrays of one dimension"):
        ds.as_type(WideDocument).windows(3)


def test_an_aux_array_of_another_length_raises() -> None:
    samples = documents([3, 4, 2])
    samples[1]["mask"] = samples[1]["mask"][:-1]
    message = r"expected 4 values in mask, one for each of tokens, got 3 - at sample 1; .*drop\('mask'\)"
    with pytest.raises(SchemaError, match=message):
        sx.open(samples).windows(2)
    assert sx.open(samples).drop("mask").windows(2).fields == ["tokens"]


def test_dtypes_of_tokens_and_pairs() -> None:
    ds = sx.open(documents([9]))
    assert ds.windows(3)["tokens"].dtype == np.uint16
    assert ds.windows(3, dtype="int32")["tokens"].dtype == np.int32
    pairs = ds.windows(3, labels=True).read([0])
    assert pairs["inputs"].dtype == pairs["labels"].dtype == np.int64 and pairs["mask"].dtype == np.uint8
    small = ds.windows(3, labels=True, dtype=np.int32)
    assert small.features["labels"] == sx.Array("int32", (3,)) and small.read([0])["labels"].dtype == np.int32
    with pytest.raises(
        SchemaError, match="expected tokens that int8 can hold, as dtype= says, got 300 - at field tokens"
    ):
        sx.open([{"tokens": np.array([1, 300])}]).windows(2, dtype="int8").read([0])
    assert sx.open([{"tokens": np.array([1, 100])}]).windows(2, dtype="int8")[0]["tokens"].tolist() == [1, 100]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 9), st.booleans(), st.booleans())
def test_labels_for_models_of_huggingface_are_those_that_they_shift(
    sizes: list[int], length: int, across: bool, partial: bool
) -> None:
    stream = np.arange(1, sum(sizes) + 1)
    parts = np.split(stream, np.cumsum(sizes)[:-1])
    ds = sx.open([{"tokens": part, "loss_mask": (part % 3 > 0).astype(np.uint8)} for part in parts])
    options: dict[str, Any] = {"across": across, "partial": partial, "loss_mask": True}
    plain = ds.drop("loss_mask").windows(length, across=across, partial=partial)
    own = ds.windows(length, labels="huggingface", **options)
    assert own.fields == ["input_ids", "labels"] and len(own) == len(plain)
    for sample, window in zip(own, plain, strict=True):
        assert sample.input_ids.tolist() == window.tokens.tolist()
        assert sample.labels.tolist() == [token if token % 3 else -100 for token in window.tokens.tolist()]
    assert own.fingerprint != ds.windows(length, labels=True, **options).fingerprint


def test_the_loss_mask_of_the_metadata_hides_labels(tmp_path: Path) -> None:
    samples = documents([5, 6])
    ds = sx.write(str(tmp_path / "d"), samples, format="tokens", metadata={"loss_mask": "mask"})
    view = ds.windows(5, labels=True)
    stream = [(int(t), int(m)) for one in samples for t, m in zip(one["tokens"], one["mask"], strict=True)]
    assert view["labels"].reshape(-1).tolist() == [t if m else -100 for t, m in stream[1:]]
    assert view["inputs"].reshape(-1).tolist() == [t for t, _ in stream[:-1]]
    assert (ds.windows(5, labels=True, ignore_index=-1)["labels"] == -1).sum() == (view["labels"] == -100).sum() > 0
    assert view.metadata == ds.metadata and view.fingerprint != ds.windows(5, labels=True, loss_mask=False).fingerprint
    with pytest.raises(ArgumentError, match="expected a value of ignore_index that uint16 can hold, got -100"):
        ds.windows(5, labels=True, dtype="uint16")
    assert -100 not in ds.drop("mask").windows(5, labels=True, loss_mask=False)["labels"]


def test_the_loss_mask_is_never_guessed(tmp_path: Path) -> None:
    samples = [{"tokens": [1, 2, 3, 4, 5], "loss_mask": [1, 0, 1, 1, 0]}]
    schema = {"tokens": sx.Array("uint16", (None,)), "loss_mask": sx.Array("uint8", (None,))}
    plain = sx.write(tmp_path / "p", samples, schema, format="parquet")
    named = sx.write(tmp_path / "d", samples, schema, format="tokens", metadata={"loss_mask": "loss_mask"})
    masked, whole = [[-100, 3, 4, -100]], [[2, 3, 4, 5]]
    views: list[Any] = [Dataset.windows, Dataset.pack]
    for method in views:
        view = functools.partial(method, length=5 - (method is Dataset.windows), labels=True)

        def labels(*given: Any, view: Any = view, **more: Any) -> Any:
            return [one[:4] for one in pickle.loads(pickle.dumps(view(*given, **more)))["labels"].tolist()]

        assert labels(plain, loss_mask=True) == labels(plain, loss_mask="loss_mask") == labels(named) == masked
        assert labels(plain, loss_mask=False) == labels(named, loss_mask=False) == whole
        assert labels(plain.drop("loss_mask")) == whole
        assert labels(named.rename(loss_mask="m"), loss_mask="m") == masked
        with pytest.raises(ArgumentError, match=r"what the field loss_mask means.*loss_mask=True.*loss_mask=False"):
            view(plain)
        for without in (named.select("tokens"), named.rename(loss_mask="m")):
            with pytest.raises(
                ArgumentError, match=r"which the metadata names as the loss mask, got a view without it"
            ):
                view(without)
        with pytest.raises(FieldError, match="expected one of the fields loss_mask, got 'los_mask'"):
            view(named, loss_mask="los_mask")
        with pytest.raises(ArgumentError, match="expected loss_mask= to be the name of a field"):
            view(named, loss_mask=3)
    for wrong in (True, "loss_mask"):
        with pytest.raises(ArgumentError, match="expected loss_mask= with labels only"):
            named.windows(4, loss_mask=wrong)


# -- errors and no windows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0,), {}, "expected at least 1 for length, got 0"),
        (("8",), {}, "expected a whole number for length, got '8'"),
        ((4, 0), {}, "expected at least 1 for stride, got 0"),
        ((4,), {"offset": -1}, "expected at least 0 for offset, got -1"),
        ((4,), {"offset": "random"}, "expected a number of tokens or 'random per epoch' for offset, got 'random'"),
        ((4,), {"offset": "random per epoch", "across": False}, "expected across=True and partial=False"),
        ((4,), {"offset": "random per epoch", "partial": True}, "expected across=True and partial=False"),
        ((4,), {"dtype": "text"}, "expected a dtype of integers, such as int64, got 'text'"),
        ((4,), {"dtype": "float32"}, "expected a dtype of integers, such as int64, got 'float32'"),
        ((4,), {"labels": True, "ignore_index": 0.5}, "expected a whole number for ignore_index, got 0.5"),
        ((4,), {"labels": "shifted"}, "expected True, False or 'huggingface' for labels, got 'shifted'"),
        ((4,), {"labels": 1}, "expected True, False or 'huggingface' for labels, got 1"),
    ],
)
def test_wrong_arguments_raise(arguments: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        sx.open(documents([5])).windows(*arguments, **options)


def test_wrong_fields_raise() -> None:
    with pytest.raises(FieldError, match="expected one of the fields tokens, mask, got 'toks'"):
        sx.open(documents([5])).windows(2, field="toks")
    with pytest.raises(SchemaError, match="expected a field of arrays of one dimension, got text - at field text"):
        sx.open([{"tokens": [1], "text": "a"}]).windows(2, field="text")
    with pytest.raises(SchemaError, match=r"expected a field of arrays of one dimension .the tokens., got x int64"):
        sx.open([{"x": 1}]).windows(2)
    with pytest.raises(SchemaError, match="expected no field 'labels', which labels= makes"):
        sx.open([{"tokens": [1, 2], "labels": [1, 2]}]).windows(2, field="tokens", labels=True)


def test_too_few_tokens_give_no_windows(tmp_path: Path) -> None:
    for form in FORMS:
        for sizes in ([], [0], [0, 0], [2, 1]):
            with opened(documents(sizes), form) as (ds, _):
                for options in ({}, {"labels": True}, {"offset": "random per epoch"}, {"across": False}, {"offset": 9}):
                    view = ds.windows(4, **options)
                    assert len(view) == 0 and plain(view) == [] and list(sx.Loader(view, batch_size=2)) == []


def test_rows_outside_raise() -> None:
    rows = sx.open(documents([9])).windows(3).rows
    for row in (-1, 3, 2**40):
        with pytest.raises(RowError, match="expected rows from 0 to 2"):
            rows.read(np.array([0, row]))


# -- views, description, identity ---------------------------------------------------------------------------------


def test_repr_shards_pickle_and_fingerprint(tmp_path: Path) -> None:
    ds = sx.write(str(tmp_path / "d"), documents([20, 30, 25]), format="tokens", shard_size=70)
    view = ds.windows(8, 4)
    assert repr(view).startswith(
        "Dataset(17 samples, windows of 8 tokens every 4: tokens uint16[8], mask uint8[8] - tok"
    )
    assert "shuffled, windows of 8 tokens at a random offset" in repr(
        ds.shuffle(0).windows(8, offset="random per epoch")
    )
    assert [name.rpartition("/")[2] for name in view.shards([0, 16])] == ["part-00000.bin", "part-00002.bin"]
    again = pickle.loads(pickle.dumps(view))
    assert plain(again) == plain(view) and again.fingerprint == view.fingerprint and len(pickle.dumps(view)) < 2000
    views = [
        *(view, ds.windows(8), ds.windows(8, 4, offset=1), ds.windows(8, 4, across=False), ds.windows(7, 4)),
        *(ds.windows(8, 4, partial=True), ds.windows(8, 4, labels=True), ds.shuffle(0).windows(8, 4)),
        *(ds.windows(8, 4, offset="random per epoch", seed=seed) for seed in (0, 1)),
        *(ds.windows(8, 4, dtype="int32"), ds.windows(8, 4, labels=True, ignore_index=-1), ds[:2].windows(8, 4)),
    ]
    assert len({one.fingerprint for one in views}) == len(views)
    assert [pickle.loads(pickle.dumps(one)).fingerprint for one in views] == [one.fingerprint for one in views]
    assert ds.select("tokens").windows(8, 4).fingerprint == view.fingerprint  # as for all choices of fields


def test_windows_have_the_version_of_their_documents(tmp_path: Path) -> None:
    sx.write(str(tmp_path / "d"), documents([5]))
    ds = sx.write(str(tmp_path / "d"), documents([5]), mode="append")
    assert ds.windows(2).version == ds.windows(2).shuffle(0).pack(4).version == 2


def test_windows_of_windows_and_other_views_of_them() -> None:
    ds = sx.open([{"tokens": np.arange(24)}])
    view = ds.windows(6)
    assert view.windows(4)["tokens"].tolist() == np.arange(24).reshape(6, 4).tolist()
    assert view.map(lambda s: {"sum": int(s.tokens.sum())})["sum"].tolist() == [15, 51, 87, 123]
    assert sx.concat(view, view).lengths("tokens").tolist() == [6] * 8
    assert view.sql("SELECT count(*) AS n FROM ds").to_pylist() == [{"n": 4}]
    assert view.to_arrow().num_rows == 4


def test_documents_that_changed_raise(tmp_path: Path) -> None:
    samples = documents([5, 6])
    lists = [dict(one) for one in samples]
    view = sx.open(lists).windows(3)
    lists[0]["tokens"] = lists[0]["tokens"][:2]
    with pytest.raises(SchemaError, match="expected 5 values as before, got 2 - at sample 0, field tokens"):
        view.read([0])


# -- loaders -----------------------------------------------------------------------------------------------------


@pytest.fixture
def tokens(tmp_path: Path) -> Dataset[Any]:
    sizes = np.random.default_rng(0).integers(0, 40, 100)
    return sx.write(str(tmp_path / "d"), documents(sizes.tolist()), format="tokens", shard_size=900)


def firsts(batches: Any) -> list[int]:
    return [int(first) for batch in batches for first in batch.tokens[:, 0]]


def test_two_ranks_see_every_window_once(tokens: Dataset[Any]) -> None:
    view = tokens.windows(16)
    ranks = [sx.Loader(view, batch_size=4, shuffle=True, rank=rank, world_size=2) for rank in (0, 1)]
    seen = [int(first) for loader in ranks for batch in loader for first in batch.tokens[batch.mask, 0]]
    assert sorted(seen) == view["tokens"][:, 0].tolist()


@pytest.mark.parametrize("offset", [0, "random per epoch"])
@pytest.mark.parametrize("workers", [0, 2])
def test_resume_in_the_middle_gives_the_same_rest(tokens: Dataset[Any], offset: Any, workers: int) -> None:
    def loader(workers: int) -> sx.Loader[Any]:
        return sx.Loader(tokens.windows(16, offset=offset), batch_size=4, shuffle=True, seed=3, workers=workers)

    whole, taken = loader(0), []
    with loader(workers) as interrupted:
        expected = [firsts(whole) for _ in range(3)]
        taken.append(firsts(interrupted))
        second = iter(interrupted)
        taken.append([first for _ in range(5) for first in firsts([next(second)])])
        state = interrupted.state_dict()
    with loader(2 - workers) as resumed:
        resumed.load_state_dict(state)
        taken[1] += firsts(resumed)
        taken.append(firsts(resumed))
    assert taken == expected
    same = [sorted(one) == sorted(expected[0]) for one in expected]
    assert same == ([True] * 3 if offset == 0 else [True, False, False])


def test_random_offsets_have_one_length_and_cover_all_begins(tokens: Dataset[Any]) -> None:
    view = tokens.windows(16, offset="random per epoch", seed=5)
    loader = sx.Loader(view, batch_size=64)
    epochs = [firsts(loader) for _ in range(16)]
    assert all(epoch == list(range(epoch[0], epoch[0] + 16 * len(view), 16)) for epoch in epochs)
    assert sorted(epoch[0] for epoch in epochs) == list(range(1, 17))
    assert firsts(sx.Loader(view, batch_size=64)) == epochs[0] == view["tokens"][:, 0].tolist()


def first_token(sample: Any) -> dict[str, int]:
    return {"first": int(sample.tokens[0])}


def test_worker_processes_see_the_same_offsets(tokens: Dataset[Any]) -> None:
    view = tokens.windows(16, offset="random per epoch", seed=5)
    here = sx.Loader(view, batch_size=16, shuffle=True)
    with sx.Loader(view, batch_size=16, shuffle=True, transform=first_token, workers=1) as loader:
        for _ in range(2):
            assert [int(first) for batch in loader for first in batch.first] == firsts(here)


def test_views_of_random_offsets_change_in_every_epoch(tokens: Dataset[Any]) -> None:
    view = tokens.windows(16, offset="random per epoch")
    train, test = view.split(0.75)
    for some in (view.take(5), train, test, view.select("tokens"), view[[3, 1, 3]], view.shuffle(1), view[::-1]):
        loader = sx.Loader(some, batch_size=7)
        first, second, third = (firsts(loader) for _ in range(3))
        steps = {b - a for a, b in zip(first, second, strict=True)}
        assert len(steps) == 1 and steps != {0} and second != third


def test_offsets_of_less_data_than_one_stride() -> None:
    view = sx.open([{"tokens": np.arange(10)}]).windows(8, offset="random per epoch")
    loader = sx.Loader(view, batch_size=1)
    assert len(view) == 1 and {firsts(loader)[0] for _ in range(9)} == {0, 1, 2}


# -- read-ahead --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("read_before", [False, True])
def test_advise_loads_the_pages_of_windows(disk_path: Path, read_before: bool) -> None:
    samples = [{"tokens": np.full(PAGE, k, np.uint16)} for k in range(1, 200)]
    ds = sx.write(str(disk_path / "d"), samples, format="tokens")
    view = ds.windows(PAGE // 2, labels=True)  # a window is a page, a document two
    if read_before:
        view.read([0])
    path = disk_path / "d" / "part-00000.bin"
    evict(path)
    assert become_resident(path, [40, 100], lambda: view.advise([40, 100], ["labels"]))
    assert not resident_pages(path)[150:].any()
