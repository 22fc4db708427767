"""Packs of tokens against a model that fills lists; in loaders; errors."""

from __future__ import annotations

import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardex as sx
from shardex.dataset import Dataset
from shardex.errors import ArgumentError, FieldError, RowError, SchemaError
from shardex.kernel.packing import best_fit
from tests.token_documents import FORMS, documents, opened, plain, sizes_of_documents

pytestmark = pytest.mark.filterwarnings("ignore:batch.mask is")  # the loss mask is batch["mask"] here

Sample = dict[str, list[int]]
Piece = list[tuple[int, int]]
STRATEGIES = ("concat", "best_fit", "truncate")


# -- the model -----------------------------------------------------------------------------------------------------


def pieces_of_samples(documents: list[Piece], length: int, strategy: str) -> list[list[Piece]]:
    """Return the pieces of each sample."""
    if strategy == "truncate":
        return [[one[:length]] if one else [] for one in documents]
    if strategy == "best_fit":
        pieces = [one[k : k + length] for one in documents for k in range(0, len(one), length)]
        order, offsets = best_fit(np.array([len(piece) for piece in pieces], np.int64), length)
        return [[pieces[k] for k in order[a:b]] for a, b in pairwise(offsets.tolist())]
    samples: list[list[Piece]] = []
    room = 0
    for one in documents:
        left = one
        while left:
            if not room:
                samples.append([])
                room = length
            samples[-1].append(left[:room])
            left, room = left[room:], room - len(left[:room])
    return samples


def model(samples: list[dict[str, Any]], length: int, strategy: str, labels: bool, pad: int) -> list[Sample]:
    streams = [list(zip(one["tokens"].tolist(), one["mask"].tolist(), strict=True)) for one in samples]
    return [as_sample(pieces, length, labels, pad) for pieces in pieces_of_samples(streams, length, strategy)]


def as_sample(pieces: list[Piece], length: int, labels: bool, pad: int) -> Sample:
    gap = length - sum(map(len, pieces))
    tokens = [token for piece in pieces for token, _ in piece] + [pad] * gap
    following = [token for piece in pieces for token in [*(token for token, _ in piece[1:]), -100]] + [-100] * gap
    ends = np.cumsum([0, *map(len, pieces)]).tolist()
    return {
        **({"inputs": tokens, "labels": following} if labels else {"tokens": tokens}),
        "mask": [mask for piece in pieces for _, mask in piece] + [0] * gap,
        "segment_ids": [number + 1 for number, piece in enumerate(pieces) for _ in piece] + [0] * gap,
        "positions": [position for piece in pieces for position in range(len(piece))] + [0] * gap,
        "cu_seqlens": ends + [length] * (gap > 0),
    }


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(FORMS),
    st.sampled_from(STRATEGIES),
    sizes_of_documents,
    st.integers(1, 12),
    st.booleans(),
    st.sampled_from([0, 7]),
)
def test_packs_are_those_of_the_model(
    form: str, strategy: Any, sizes: list[int], length: int, labels: bool, pad: int
) -> None:
    with opened(documents(sizes), form) as (ds, samples):
        view, expected = (
            ds.pack(length, strategy, labels=labels, pad=pad, segments=True),
            model(samples, length, strategy, labels, pad),
        )
        assert plain(view) == expected and len(view) == len(expected)
        assert [plain(view[[k]])[0] for k in range(0, len(view), 5)] == expected[::5]
        view.advise(np.arange(len(view)))
        order = np.random.default_rng(0).integers(0, max(1, len(view)), 2 * len(view))
        assert plain(view[order]) == [expected[k] for k in order]
        for name in view.fields:
            assert plain(view.select(name)) == [{name: sample[name]} for sample in expected]
        assert view.fields == list(expected[0] if expected else view.features)
        short = ds.pack(length, strategy, segments=False, pad=pad)
        assert plain(short) == [dict(zip(("tokens", "mask"), one.values(), strict=False)) for one in without(expected)]


@settings(deadline=None)
@given(st.sampled_from(STRATEGIES), sizes_of_documents.filter(bool), st.integers(1, 12), st.booleans())
def test_labels_for_models_of_huggingface_are_those_that_they_shift(
    strategy: Any, sizes: list[int], length: int, masked: bool
) -> None:
    """Shifted by the model, they are the labels of the same packs with ``labels=True``."""
    ds = sx.open(
        [{**one, "attention_mask": one["tokens"]} for one in documents(sizes)]
    )  # replaced, as tokenizers add it
    options: dict[str, Any] = {"loss_mask": "mask" if masked else False, "pad": 7}
    own, other = (ds.pack(length, strategy, labels=labels, **options) for labels in ("huggingface", True))
    segments = ds.pack(length, strategy, segments=True, pad=7)
    assert len(own) == len(other) and own.fields == ["input_ids", "labels", *["mask"] * (not masked), "attention_mask"]
    for sample, shifted, piece in zip(own, other, segments, strict=True):
        assert sample.input_ids.tolist() == shifted.inputs.tolist() == piece.tokens.tolist()
        assert sample.labels[1:].tolist() == shifted.labels[:-1].tolist()
        assert sample.attention_mask.tolist() == (piece.segment_ids > 0).tolist()
        assert (sample.labels[piece.positions == 0] == -100).all()
    assert own.features["attention_mask"] == own.features["labels"] == sx.Array("int64", (length,))
    whole = ds.pack(length, strategy, labels="huggingface", segments=True, **options)
    assert whole.fields == [*own.fields, "segment_ids", "position_ids", "cu_seqlens"]
    for name, other_name in ("segment_ids",) * 2, ("position_ids", "positions"), ("cu_seqlens",) * 2:
        assert [one.tolist() for one in whole[name]] == [one.tolist() for one in segments[other_name]]


def without(samples: list[Sample]) -> list[Sample]:
    """Return samples without labels."""
    return [{name: value for name, value in one.items() if name != "labels"} for one in samples]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_token_is_in_one_sample(strategy: Any) -> None:
    ds = sx.open(documents([3, 17, 0, 9, 8, 1, 1, 30]))
    view = ds.pack(8, strategy, segments=True)
    found = view["tokens"][view["segment_ids"] > 0]
    if strategy == "truncate":
        assert len(view) == 8 and found.size == np.minimum(ds.lengths("tokens"), 8).sum()
    else:
        assert sorted(found.tolist()) == list(range(1, 70))
    assert view["tokens"].dtype == np.uint16 and view["positions"].dtype == view["segment_ids"].dtype == np.int32
    assert view["cu_seqlens"].dtype == np.int32 and view.features["cu_seqlens"] == sx.Array("int32", (None,))


def test_best_fit_cuts_no_document_that_fits() -> None:
    sizes = np.random.default_rng(0).integers(0, 40, 300)
    ds = sx.open(documents(sizes.tolist()))
    view = ds.pack(32, "best_fit", segments=True)
    bounds = zip(view["cu_seqlens"], view["segment_ids"].max(axis=1), strict=True)
    pieces = np.concatenate([np.diff(ends)[:count] for ends, count in bounds])
    cut = [size for size in sizes.tolist() if size]
    expected = [part for size in cut for part in ([32, size - 32] if size > 32 else [size])]
    assert sorted(pieces.tolist()) == sorted(expected)
    assert len(view) <= 1.02 * sizes.sum() / 32 + 1


# -- fields ----------------------------------------------------------------------------------------------------------


def test_padding_and_loss_mask_of_the_metadata(tmp_path: Path) -> None:
    samples = documents([5, 6, 4])
    ds = sx.write(
        str(tmp_path / "d"), samples, format="tokens", metadata={"loss_mask": "mask", "eos": 500, "pad": None}
    )
    view = ds.pack(8, "best_fit", labels=True, segments=True)
    plainly = ds.pack(8, "best_fit", labels=True, ignore_index=-1, pad=3, segments=True)
    hidden = {int(t) for one in samples for t, m in zip(one["tokens"], one["mask"], strict=True) if not m}
    firsts = {int(one["tokens"][0]) for one in samples}
    for one, pad, ignore in ((view, 500, -100), (plainly, 3, -1)):
        assert (one["inputs"][one["segment_ids"] == 0] == pad).all() and (one["segment_ids"] == 0).any()
        seen = one["labels"][one["labels"] != ignore]
        assert set(seen.tolist()) == set(range(1, 16)) - hidden - firsts
        there = one["labels"] != ignore
        assert (one["labels"][there] == one["inputs"][there] + 1).all()
    assert (
        (
            sx.write(str(tmp_path / "e"), samples, format="tokens", metadata={"eos": 9, "pad": 8}).pack(9)["tokens"][
                -1
            ][-1]
        )
        == 8
    )
    assert view.metadata == ds.metadata


def test_metadata_of_several_datasets_is_what_they_share(tmp_path: Path) -> None:
    shared = {"loss_mask": "mask", "eos": 500}
    first, second = {**shared, "text_field": "text", "pad": None}, {**shared, "text_field": "body"}
    parts = [
        sx.write(str(tmp_path / name), documents([5, 6]), format="tokens", metadata=metadata)
        for name, metadata in (("a", first), ("b", second))
    ]
    for both in (sx.concat(parts), sx.mix(parts, weights=[1, 1], seed=0)):
        assert both.metadata == shared
        last = both.pack(20, labels=True, segments=True)[-1]
        assert last.inputs[-1] == 500 and last.labels[-1] == -100
    assert sx.concat([parts[0], sx.write(str(tmp_path / "c"), documents([3, 4]), format="tokens")]).metadata == {}


def test_pads_and_dtypes() -> None:
    ds = sx.open(documents([3]))
    assert ds.pack(4, pad=-1, dtype="int32")["tokens"].tolist() == [[1, 2, 3, -1]]
    with pytest.raises(ArgumentError, match="expected a value of pad that uint16 can hold, got -1"):
        ds.pack(4, pad=-1)
    with pytest.raises(ArgumentError, match="expected a value of ignore_index that uint16 can hold, got -100"):
        ds.pack(4, labels=True, dtype="uint16")
    assert ds.pack(4, labels=True, dtype="uint16", ignore_index=0)["labels"].tolist() == [[2, 3, 0, 0]]
    with pytest.raises(SchemaError, match="expected tokens that int8 can hold, as dtype= says, got 300"):
        sx.open([{"tokens": np.array([1, 300])}]).pack(3, dtype="int8").read([0])
    assert sx.open([{"tokens": np.array([1, 30])}]).pack(3, dtype="int8", pad=-5)["tokens"].tolist() == [[1, 30, -5]]


def test_arrays_of_other_numbers() -> None:
    samples = [{"series": np.array([0.5, 1.5, 2.5]), "ok": np.array([True, False, True])}]
    ds = sx.open([*samples, {"series": np.array([3.5]), "ok": np.array([True])}])
    assert ds.windows(2, field="series")["series"].tolist() == [[0.5, 1.5], [2.5, 3.5]]
    packed = ds.pack(3, "best_fit", field="series", pad=-1)
    assert packed["series"].tolist() == [[0.5, 1.5, 2.5], [3.5, -1, -1]]
    assert packed["ok"].tolist() == [[True, False, True], [True, False, False]]
    assert ds.pack(3, field="ok")["ok"].tolist()[-1] == [True, False, False]
    options: dict[str, Any]
    for options in ({"labels": True}, {"dtype": "int64"}):
        for make in (ds.windows, ds.pack):
            with pytest.raises(SchemaError, match=r"expected a field of integers, .* got float64 - at field series"):
                make(2, field="series", **options)
    assert ds.windows(3, field="ok", labels=True)["labels"].tolist() == [[0, 1, 1]]
    with pytest.raises(ArgumentError, match="expected a value of pad that bool can hold, got 7"):
        ds.pack(3, field="ok", pad=7)


def test_segments_replace_arrays_of_their_names() -> None:
    samples = [{"tokens": np.arange(3), "positions": np.arange(7, 10)}]
    ds = sx.open(samples)
    assert ds.pack(4, segments=True)["positions"].tolist() == [[0, 1, 2, 0]]
    assert ds.pack(4, segments=False)["positions"].tolist() == [[7, 8, 9, 0]]


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0,), {}, "expected at least 1 for length, got 0"),
        ((4, "worst_fit"), {}, "expected one of the strategies concat, best_fit, truncate, got 'worst_fit'"),
        ((4, ["concat"]), {}, "expected one of the strategies concat, best_fit, truncate, got ."),
        ((4,), {"pad": "x"}, "expected a whole number for pad, got 'x'"),
        ((4,), {"pad": 1 << 16}, "expected a value of pad that uint16 can hold, got 65536"),
        ((4,), {"dtype": "float16"}, "expected a dtype of integers, such as int64, got 'float16'"),
    ],
)
def test_wrong_arguments_raise(arguments: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        sx.open(documents([5])).pack(*arguments, **options)


def test_wrong_fields_raise() -> None:
    with pytest.raises(FieldError, match="expected one of the fields tokens, mask, got 'toks'"):
        sx.open(documents([5])).pack(2, field="toks")
    with pytest.raises(SchemaError, match="expected a field of arrays of one dimension, got text - at field text"):
        sx.open([{"tokens": [1], "text": "a"}]).pack(2, field="text")
    with pytest.raises(SchemaError, match="expected no field 'inputs', which labels= makes"):
        sx.open([{"tokens": [1, 2], "inputs": [1, 2]}]).pack(2, field="tokens", labels=True)
    with pytest.raises(SchemaError, match=r'got json - at field ids; open lists of integers with schema=..ids": sx'):
        sx.open([{"ids": [[1], 2]}]).pack(2, field="ids")
    samples = documents([3, 4, 2])
    samples[1]["mask"] = samples[1]["mask"][:-1]
    with pytest.raises(SchemaError, match="expected 4 values in mask, one for each of tokens, got 3 - at sample 1"):
        sx.open(samples).pack(2)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_tokens_give_no_packs(strategy: Any) -> None:
    for form in ("list", "tokens", "native"):
        for sizes in ([], [0, 0]):
            with opened(documents(sizes), form) as (ds, _):
                view = ds.pack(4, strategy, segments=True)
                assert len(view) == (len(sizes) if strategy == "truncate" else 0)
                assert view["tokens"].tolist() == [[0] * 4] * len(view)
                assert [row.tolist() for row in view["cu_seqlens"]] == [[0, 4]] * len(view)
                assert view.shards(slice(None)) == [""] * len(view)


def test_rows_outside_raise() -> None:
    for strategy in STRATEGIES:
        rows = sx.open(documents([9])).pack(3, strategy).rows  # type: ignore[arg-type]
        for row in (-1, 3, 2**40):
            with pytest.raises(RowError, match="expected rows from 0 to"):
                rows.read(np.array([0, row]))


# -- views, description, identity ---------------------------------------------------------------------------------


def test_repr_shards_pickle_and_fingerprint(tmp_path: Path) -> None:
    ds = sx.write(str(tmp_path / "d"), documents([20, 30, 25]), format="tokens", shard_size=70)
    view = ds[1:].pack(32, "best_fit")
    assert repr(view).startswith("Dataset(2 samples, packed into 32 tokens (best_fit): tokens uint16[32], mask ui")
    assert [name.rpartition("/")[2] for name in view.shards([0, 1])] == ["part-00001.bin", "part-00002.bin"]
    again = pickle.loads(pickle.dumps(view))
    assert plain(again) == plain(view) and again.fingerprint == view.fingerprint and len(pickle.dumps(view)) < 2000
    views = [
        *(ds.pack(32), ds.pack(31), ds.pack(32, "best_fit"), ds.pack(32, "truncate"), ds.pack(32, pad=1)),
        *(ds.pack(32, segments=True), ds.pack(32, labels=True), ds.pack(32, dtype="int32"), ds[::-1].pack(32)),
        *(ds.pack(32, labels=True, ignore_index=-1), ds.windows(32), view),
    ]
    assert len({one.fingerprint for one in views}) == len(views)
    assert [pickle.loads(pickle.dumps(one)).fingerprint for one in views] == [one.fingerprint for one in views]


def test_fingerprints_never_change() -> None:
    """States of runs have them: a run over windows or packs must find its own again."""
    ds = sx.open([{"tokens": [1, 2, 3], "mask": [1, 0, 1]}, {"tokens": [4], "mask": [1]}])
    views = [
        ds.windows(2),
        ds.windows(2, 1, offset="random per epoch", seed=3),
        ds.pack(2, "best_fit", labels=True, segments=True),
    ]
    assert [view.fingerprint for view in views] == ["99155079b0946fc4", "b5ccbb0ba4efdcbb", "7a7718de656ff58e"]


# -- loaders -----------------------------------------------------------------------------------------------------


@pytest.fixture
def tokens(tmp_path: Path) -> Dataset[Any]:
    sizes = np.random.default_rng(0).integers(0, 40, 100)
    return sx.write(str(tmp_path / "d"), documents(sizes.tolist()), format="tokens", shard_size=900)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_ranks_see_every_pack_once(tokens: Dataset[Any], strategy: Any) -> None:
    view = tokens.pack(16, strategy, labels=True, segments=True)
    ranks = [sx.Loader(view, batch_size=4, shuffle=True, rank=rank, world_size=2) for rank in (0, 1)]
    seen = [row.tolist() for loader in ranks for batch in loader for row in batch.inputs[batch.mask]]
    assert sorted(seen) == sorted(view["inputs"].tolist())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_resume_in_the_middle_gives_the_same_rest(tokens: Dataset[Any], strategy: Any) -> None:
    def loader(workers: int) -> sx.Loader[Any]:
        view = tokens.shuffle(1).pack(16, strategy, segments=True)
        fields = ["tokens", "cu_seqlens"]
        return sx.Loader(view, batch_size=4, shuffle=True, seed=3, workers=workers, fields=fields, ragged="pack")

    def content(batch: Any) -> Any:
        return batch.tokens.tolist(), [row.tolist() for row in batch.cu_seqlens]

    expected = [content(batch) for batch in loader(0)]
    with loader(2) as interrupted:
        batches = iter(interrupted)
        taken = [content(next(batches)) for _ in range(5)]
        state = interrupted.state_dict()
    with loader(0) as resumed:
        resumed.load_state_dict(state)
        assert taken + [content(batch) for batch in resumed] == expected


def test_a_loader_reads_only_the_fields_that_it_is_asked_for(tokens: Dataset[Any]) -> None:
    view = tokens.pack(16, labels=True, segments=True)
    batch = next(iter(sx.Loader(view, batch_size=4, fields=["labels", "positions"])))
    assert batch.labels.tolist() == view["labels"][:4].tolist()
    assert sorted(batch.positions[0].tolist()) == sorted(view[0]["positions"].tolist())


def test_padding_is_never_a_text_of_the_metadata(tmp_path: Path) -> None:
    schema = {"tokens": sx.Array("int64", (None,))}
    sx.write(tmp_path / "d", [{"tokens": [1, 2, 3]}], schema, metadata={"eos": "</s>"})
    assert sx.open(tmp_path / "d").pack(4)[0].tokens.tolist() == [1, 2, 3, 0]
