"""Loaders whose batches are chosen by length: limits, ranks, resume, moving, bad samples, statistics."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.errors import ArgumentError, FieldError, FormatError, SchemaError, StateError
from shardex.kernel import Columns, Integers, Ragged
from shardex.loader.options import RaggedForm

LENGTHS = np.random.default_rng(5).integers(0, 30, 97)
LENGTHS[13] = 30


class Documents:
    """Documents of known lengths whose tokens are computed; those in `bad` cannot be read."""

    in_python = False
    features = sx.Features({"tokens": sx.Array("int64", (None,)), "row": sx.Value("int64")})

    def __init__(self, lengths: Integers, bad: Sequence[int] = ()) -> None:
        self.sizes, self.bad = lengths, bad

    def __len__(self) -> int:
        return len(self.sizes)

    def lengths(self, name: str) -> Integers:
        return self.sizes

    def read(self, rows: Integers, fields: Sequence[str] | None = None) -> Columns:
        for row in self.bad:
            if (rows == row).any():
                raise FormatError(f"document {row} is broken")
        offsets = np.append(0, np.cumsum(self.sizes[rows]))
        tokens = Ragged.from_values(np.repeat(rows, self.sizes[rows]), offsets)
        return Columns({"tokens": tokens, "row": rows.copy()}).select(fields or ["tokens", "row"])


def documents(count: int = 97, bad: Sequence[int] = ()) -> sx.Dataset:
    return sx.open(Documents(LENGTHS[:count], bad))


def rows(batches: Any) -> list[list[int]]:
    """The samples of each batch; none for a batch that only repeats another."""
    return [batch.row[batch.mask].tolist() for batch in batches]


def flat(batches: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(batches))


def ranks(world: int, state: dict[str, Any] | None = None, **options: Any) -> list[sx.Loader]:
    loaders = [sx.Loader(rank=rank, world_size=world, **options) for rank in range(world)]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
    return loaders


def together(loaders: Sequence[sx.Loader], steps: int | None = None) -> list[list[int]]:
    """The batches of all ranks, in order; every rank must get the same number of batches."""
    found = list(itertools.islice(zip(*loaders, strict=True), steps))
    return [batch for step in found for batch in rows(step) if batch]


OPTIONS: list[dict[str, Any]] = [
    {"max_tokens": 60},
    {"max_tokens": 60, "shuffle": True},
    {"max_tokens": 60, "ragged": "pack", "shuffle": True},
    {"max_tokens": 60, "bucket": 40, "shuffle": True},
    {"max_tokens": 60, "bucket": 40},
    {"max_tokens": 100, "batch_size": 5, "bucket": 24, "shuffle": True},
    {"batch_size": 6, "bucket": 24, "shuffle": True},
    {"max_tokens": 60, "bucket": 16, "shuffle": True, "block": 8, "window": 2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_sample_once_within_the_limits(options: dict[str, Any]) -> None:
    loader = sx.Loader(documents(), **options)
    batches = list(loader)
    assert sorted(flat(rows(batches))) == list(range(97)) and len(batches) == loader.step
    for batch in batches:
        sizes = LENGTHS[batch.row]
        total = sizes.sum() if "ragged" in options else sizes.max() * len(sizes)
        assert total <= options.get("max_tokens", 10**9) and len(batch) <= options.get("batch_size", 97)
        assert batch.lengths_of("tokens").tolist() == sizes.tolist() and (batch.origin.rows == batch.row).all()
        assert batch.mask.all()
    if "bucket" in options:
        without = sx.Loader(documents(), **{**options, "bucket": None})
        assert loader.stats.tokens == LENGTHS.sum()
        assert sum(map(len, without)) == 97 and loader.stats.padding < 0.7 * without.stats.padding


def test_batches_without_shuffle_follow_the_order_of_the_dataset() -> None:
    assert flat(rows(sx.Loader(documents(), max_tokens=60))) == list(range(97))
    order = np.concatenate([np.argsort(np.maximum(LENGTHS[b : b + 40], 1), kind="stable") + b for b in (0, 40, 80)])
    assert flat(rows(sx.Loader(documents(), max_tokens=60, bucket=40))) == order.tolist()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_divide_the_same_batches(options: dict[str, Any], world: int) -> None:
    alone = sx.Loader(documents(), rank=0, world_size=1, epochs=3, **options)
    expected = rows(alone)
    loaders = ranks(world, dataset=documents(), epochs=3, **options)
    counts = {len(loader) for loader in loaders}
    assert together(loaders) == expected and counts == {loader.step for loader in loaders}
    assert {len(loader) for loader in loaders} == {sum(-(-n // world) for n in epoch_counts(options, 3, 6))}


def epoch_counts(options: dict[str, Any], begin: int, end: int) -> list[int]:
    """Number of batches in epochs."""
    loader = sx.Loader(documents(), rank=0, world_size=1, **options)
    counts = []
    for epoch in range(begin, end):
        loader.seek(epoch)
        counts.append(len(list(loader)))
    return counts


def test_missing_ranks_repeat_batches_with_mask_false() -> None:
    options: dict[str, Any] = {"dataset": documents(), "max_tokens": 60, "shuffle": True}
    alone = list(sx.Loader(rank=0, world_size=1, **options))
    world = len(alone) - 1  # one batch is left for the second step
    steps = [list(loader) for loader in ranks(world, **options)]
    assert [len(batches) for batches in steps] == [2] * world
    assert steps[0][1].mask.all() and (steps[0][1].row == alone[-1].row).all()
    for rank in range(1, world):
        assert not steps[rank][1].mask.any() and (steps[rank][1].row == alone[rank - 1].row).all()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_drop_last_leaves_out_the_step_that_is_not_full(options: dict[str, Any]) -> None:
    whole = rows(sx.Loader(documents(), rank=0, world_size=1, **options))
    full = [batch for batch in whole if "max_tokens" in options or len(batch) == options["batch_size"]]
    for world in (1, 2, 3, len(full), len(full) + 2):
        loaders = ranks(world, dataset=documents(), drop_last=True, **options)
        kept = max(len(full) // world, 1) * world
        assert len(loaders[0]) == kept // world and together(loaders) == full[:kept]
        assert [(loader.epoch, loader.position) for loader in loaders] == [(1, 0)] * world


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_resume_after_every_step_with_another_number_of_ranks(options: dict[str, Any]) -> None:
    options = {"dataset": documents(50), "epochs": 2, "seed": 4, **options}
    straight = rows(sx.Loader(rank=0, world_size=1, **options))
    for before, after in ((1, 2), (2, 3), (3, 1)):
        for steps in range(len(ranks(before, **options)[0])):
            first = ranks(before, **options)
            seen = together(first, steps)
            states = [loader.state_dict() for loader in first]
            assert all(state == states[0] for state in states)
            assert seen + together(ranks(after, states[0], **options)) == straight


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_workers_make_the_same_batches_and_resume(worker_type: Any) -> None:
    options: dict[str, Any] = {"max_tokens": 60, "bucket": 40, "shuffle": True, "epochs": 2}
    straight = rows(sx.Loader(documents(), **options))
    with sx.Loader(documents(), workers=2, worker_type=worker_type, **options) as loader:
        for steps in (0, 1, 7, len(straight) - 2):
            loader.seek()
            seen = rows(itertools.islice(loader, steps))
            rest = sx.Loader(documents(), **options)
            rest.load_state_dict(loader.state_dict())
            assert seen + rows(rest) == straight
        loader.seek()
        assert rows(loader) == straight


def test_state_of_other_batches_is_refused() -> None:
    options: dict[str, Any] = {"dataset": documents(), "shuffle": True, "batch_size": 8, "max_tokens": 60, "bucket": 40}
    loader = sx.Loader(**options)
    list(itertools.islice(loader, 3))
    state = loader.state_dict()
    assert len(json.dumps(state)) < 500
    changes: list[tuple[dict[str, Any], str]] = [
        ({"max_tokens": 70}, "run with max_tokens=70, got one with max_tokens=60"),
        ({"bucket": None}, "run with bucket=None, got one with bucket=40"),
        ({"batch_size": None}, "run with batch_size=None, got one with batch_size=8"),
        ({"ragged": "pack"}, "run with padded=False, got one with padded=True"),
        ({"max_tokens": None, "bucket": None}, "max_tokens=None, bucket=None, got one with max_tokens=60, bucket=40"),
        ({"seed": 1}, "over the same order"),
    ]
    for change, message in changes:
        other = sx.Loader(**{**options, **change})
        with pytest.raises(StateError, match=f"{message}.* at 'order'.*force=True"):
            other.load_state_dict(state)
        other.load_state_dict(state, force=True)
        rest = flat(rows(other))
        assert other.epoch == 1 and len(rest) == len(set(rest)) == 97 - loader.position
    constant = sx.Loader(documents(), 8, shuffle=True).state_dict()
    assert constant["order"] == {"shuffle": True, "seed": 0}
    with pytest.raises(StateError, match="run with max_tokens=60, bucket=40, got one with max_tokens=None, bucket=N"):
        sx.Loader(**options).load_state_dict(constant)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_skip_seek_and_replay(options: dict[str, Any]) -> None:
    options = {"dataset": documents(), "epochs": 3, **options}
    straight = rows(sx.Loader(rank=0, world_size=1, **options))
    loaders = ranks(2, **options)
    seen = list(zip(*loaders, strict=True))
    for step, parts in enumerate(seen):
        for rank, part in enumerate(parts):
            again = loaders[0].replay(step, rank)
            assert (again.row == part.row).all() and (again.mask == part.mask).all()
            assert again.origin.epoch == part.origin.epoch
    loader = sx.Loader(rank=0, world_size=1, **options)
    for steps in (0, 1, len(straight) // 2, len(straight) - 1):
        loader.seek()
        loader.skip(steps)
        assert rows(loader) == straight[steps:]
    epoch = sx.Loader(rank=0, world_size=1, **{**options, "epochs": 1})
    order = flat(rows(epoch))
    for position in (0, 1, 50, 96):  # also in the middle of a batch
        epoch.seek(0, position)
        assert flat(rows(epoch)) == order[position:]


def test_replay_of_steps_before_a_resume_with_another_number_of_ranks() -> None:
    options: dict[str, Any] = {"dataset": documents(40), "max_tokens": 60, "shuffle": True, "epochs": None}
    first = ranks(2, **options)
    seen = [rows(parts) for parts in itertools.islice(zip(*first, strict=True), 30)]
    second = ranks(3, first[0].state_dict(), **options)
    seen += [rows(parts) for parts in itertools.islice(zip(*second, strict=True), 20)]
    assert second[0].epoch > 3
    for step, parts in enumerate(seen):
        for rank, part in enumerate(parts):
            again = second[1].replay(step, rank)
            assert again.row[again.mask].tolist() == part


def test_bad_samples_are_replaced_by_samples_that_fit() -> None:
    bad = [3, 13, 42, 43]  # 13 is the longest sample
    for options in OPTIONS:
        good = list(sx.Loader(documents(), **options))
        for workers in (0, 2):
            kind: Any = "process" if options is OPTIONS[3] else "auto"
            with sx.Loader(documents(bad=bad), workers=workers, worker_type=kind, on_error="skip", **options) as loader:
                batches = list(loader)
            assert sorted(skip.row for skip in loader.skipped) == bad
            for batch, expected in zip(batches, good, strict=True):
                assert (batch.row == expected.row)[batch.mask].all() and not set(batch.row.tolist()) & set(bad)
                sizes = LENGTHS[batch.row]
                total = sizes.sum() if "ragged" in options else sizes.max() * len(sizes)
                assert total <= options.get("max_tokens", 10**9)


def test_bad_samples_whose_lengths_cannot_be_read(tmp_path: Path) -> None:
    lines = [json.dumps({"tokens": list(range(n)), "row": k}) for k, n in enumerate(LENGTHS.tolist())]
    lines[7] = lines[50] = "{broken"
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    ds = sx.open(str(tmp_path), schema={"tokens": sx.Array("int64", (None,)), "row": int})
    with pytest.raises(FormatError, match=r"a\.jsonl, line 8"):
        sx.Loader(ds, max_tokens=60)
    forms: list[RaggedForm] = ["pad", "list"]
    for form in forms:
        loader = sx.Loader(ds, max_tokens=60, bucket=40, on_error="skip", ragged=form)
        batches = list(loader)
        for batch in batches:
            assert (batch.tokens.size if form == "pad" else sum(map(len, batch.tokens))) <= 60
        assert sorted(bad.row for bad in loader.skipped) == [7, 50]
        assert sorted(flat(rows(batches))) == [row for row in range(97) if row not in (7, 50)]


def test_mixtures() -> None:
    parts = {"a": documents(40), "b": documents(97)}
    ds = sx.mix(parts, {"a": 0.5, "b": 0.5}, length=60)
    options: dict[str, Any] = {"max_tokens": 60, "bucket": 30, "shuffle": True, "epochs": 2}
    straight = rows(sx.Loader(ds, rank=0, world_size=1, **options))
    assert together(ranks(2, dataset=ds, **options)) == straight
    assert sorted(flat(straight)) == sorted(flat(rows(sx.Loader(ds, 7, shuffle=True, epochs=2))))
    loader = sx.Loader(ds, **options)
    seen = rows(itertools.islice(loader, 5))
    state = loader.state_dict()
    rest = sx.Loader(ds, **options)
    rest.load_state_dict(state)
    assert seen + rows(rest) == straight
    other = sx.mix(parts, {"a": 0.9, "b": 0.1}, length=60)
    with pytest.raises(StateError, match=r"expected the state of the beginning of an epoch .* got position"):
        sx.Loader(other, **options).load_state_dict(state, reweight=True)
    loader.seek(1)
    reweighted = sx.Loader(other, **options)
    reweighted.load_state_dict(loader.state_dict(), reweight=True)
    batches = list(reweighted)
    assert sum(len(batch) for batch in batches) == 60
    assert sum(source == "a" for batch in batches for source in batch.origin.sources) == 54


def test_native_datasets_views_and_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    samples = [{"tokens": np.full(n, k, np.uint16), "row": k} for k, n in enumerate(LENGTHS.tolist())]
    ds = sx.write(tmp_path / "d", samples, {"tokens": sx.Array("uint16", (None,)), "row": int})
    expected = rows(sx.Loader(documents(), max_tokens=60, bucket=40, shuffle=True))
    found = list(sx.Loader(ds, max_tokens=60, bucket=40, shuffle=True, to="torch"))
    assert [batch.row.tolist() for batch in found] == expected
    assert all(isinstance(batch.tokens, torch.Tensor) and batch.tokens.numel() <= 60 for batch in found)
    view = ds[::-2]
    assert sorted(flat(rows(sx.Loader(view, max_tokens=60, shuffle=True)))) == list(range(0, 97, 2))
    with sx.Loader(view, max_tokens=60, workers=1, worker_type="process", transform=lambda s: s) as loader:
        assert flat(rows(loader)) == list(range(96, -1, -2))


def test_transform_gets_the_same_random_numbers_with_and_without_buckets() -> None:
    def noisy(sample: sx.DictSample, rng: np.random.Generator) -> dict[str, Any]:
        return {"row": sample.row, "noise": rng.random()}

    found = []
    limits: list[dict[str, Any]] = [{"batch_size": 5}, {"max_tokens": 60, "bucket": 40}]
    for options in limits:
        loader = sx.Loader(documents(), shuffle=True, transform=noisy, **options)
        found.append({r: x for b in loader for r, x in zip(b.row.tolist(), b.noise.tolist(), strict=True)})
    assert found[0] == found[1]


def test_empty_datasets_and_empty_samples() -> None:
    empty = sx.Loader(documents(0), max_tokens=60)
    assert list(empty) == [] and len(empty) == 0 and not empty
    with pytest.raises(ArgumentError, match="expected samples for at least one batch"):
        list(sx.Loader(documents(0), max_tokens=60, epochs=None))
    nothing = sx.open(Documents(np.zeros(10, np.int64)))
    assert [len(batch) for batch in sx.Loader(nothing, max_tokens=4)] == [4, 4, 2]


def test_the_field_whose_length_counts(tmp_path: Path) -> None:
    data = [{"a": np.arange(k % 5), "b": np.arange(9 - k % 5), "c": np.zeros(3), "k": k} for k in range(20)]
    array = sx.Array("int64", (None,))
    ds = sx.write(tmp_path / "d", data, {"a": array, "b": array, "c": sx.Array("float64", (3,)), "k": int})
    assert all(batch.a.size <= 12 for batch in sx.Loader(ds, max_tokens=12, length_of="a"))
    assert all(batch.b.size <= 12 for batch in sx.Loader(ds, max_tokens=12, length_of="b", fields=["b"]))
    assert [batch.k.tolist() for batch in sx.Loader(ds, max_tokens=12, length_of="a", fields=["k"])]
    assert all(batch.a.size <= 12 for batch in sx.Loader(ds, max_tokens=12, fields=["a", "c"]))
    named = ds.rename(a="inputs", b="labels")
    assert all(batch.inputs.size <= 12 for batch in sx.Loader(named, max_tokens=12))
    assert [len(batch) for batch in sx.Loader(ds.rename(c="tokens").select("tokens"), max_tokens=12)] == [4] * 5
    choices: list[tuple[dict[str, Any], str]] = [
        ({}, "expected one field of arrays that differ in length, .* got the fields a, b; .* length_of="),
        ({"fields": ["c", "k"]}, "expected one field of arrays that differ in length, .* got no such field"),
    ]
    for options, message in choices:
        with pytest.raises(ArgumentError, match=message):
            sx.Loader(ds, max_tokens=12, **options)
    with pytest.raises(FieldError, match="got 'd'"):
        sx.Loader(ds, max_tokens=12, length_of="d")
    with pytest.raises(SchemaError, match="expected a field of arrays"):
        sx.Loader(ds, max_tokens=12, length_of="k")


@pytest.mark.parametrize("shuffle", [False, True])
def test_windows_and_packs(tmp_path: Path, shuffle: bool) -> None:
    documents = [{"tokens": np.arange(n, dtype=np.uint16)} for n in LENGTHS.tolist()]
    ds = sx.write(tmp_path / "d", documents, {"tokens": sx.Array("uint16", (None,))}, format="tokens")
    options: dict[str, Any] = {"max_tokens": 32, "shuffle": shuffle, "epochs": 2}
    windows = ds.windows(8, offset="random per epoch")
    batches = list(sx.Loader(windows, **options))
    assert {len(batch) for batch in batches[: len(batches) // 2 - 1]} == {4}
    assert sum(map(len, batches)) == 2 * len(windows)
    loader = sx.Loader(ds.pack(8), **options)
    assert all(batch.tokens.size <= 32 for batch in loader) and loader.stats.tokens == 0  # not those of cu_seqlens
    short = ds.windows(8, across=False, partial=True, labels=True)
    loader = sx.Loader(short, bucket=16, **options)
    assert all(batch.inputs.size <= 32 for batch in loader) and loader.stats.tokens == 2 * short.lengths("inputs").sum()


def test_a_sample_that_is_too_long_is_named(tmp_path: Path) -> None:
    data = [{"t": np.arange(k + 1)} for k in range(20)]
    ds = sx.write(tmp_path / "d", data, {"t": sx.Array("int64", (None,))})
    message = (
        r"expected samples of at most max_tokens=12 tokens, got one of 20 \(8 samples are longer than that\) - at "
        r"field t, sample 19 of .*\.arrow"
    )
    with pytest.raises(ArgumentError, match=message):
        sx.Loader(ds, max_tokens=12)
    assert sum(len(batch) for batch in sx.Loader(ds[:12], max_tokens=12)) == 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "expected batch_size= or max_tokens=, which limit a batch, got neither"),
        ({"bucket": 8}, "expected batch_size= or max_tokens=, which limit a batch, got neither"),
        ({"batch_size": 3, "length_of": "tokens"}, "expected max_tokens= or bucket= together with length_of='tokens'"),
        ({"batch_size": 3, "bucket": 8}, "expected a bucket that is a multiple of batch_size=3, .* got 8"),
        ({"max_tokens": 0}, "expected at least 1 for max_tokens, got 0"),
        ({"max_tokens": 60, "bucket": 0}, "expected at least 1 for bucket, got 0"),
    ],
    ids=str,
)
def test_wrong_options_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        sx.Loader(documents(), **options)


def test_repr_and_stats() -> None:
    loader = sx.Loader(documents(), max_tokens=60)
    assert "97 samples, batches of up to 60 tokens, rank 0" in repr(loader)
    assert "batches of 8, up to 60 tokens" in repr(sx.Loader(documents(), 8, max_tokens=60))
    batches = list(loader)
    padded = sum(batch.tokens.size for batch in batches)
    assert (loader.stats.tokens, loader.stats.padding) == (LENGTHS.sum(), padded - LENGTHS.sum())
    assert loader.stats.padding_share == pytest.approx(1 - LENGTHS.sum() / padded)
    assert f"{LENGTHS.sum():,} tokens and {loader.stats.padding_share:.1%} padding, " in str(loader.stats)
    packed = sx.Loader(documents(), max_tokens=60, ragged="pack")
    list(packed)
    assert (packed.stats.tokens, packed.stats.padding) == (LENGTHS.sum(), 0) and "padding" not in str(packed.stats)
    constant = sx.Loader(documents(), 5)
    widths = [batch.tokens.size for batch in constant]
    assert constant.stats.padding == sum(widths) - LENGTHS.sum()
    plain = sx.Loader(documents(), 5, fields=["row"])
    assert sum(map(len, plain)) == 97 and plain.stats.tokens == 0 and "tokens" not in str(plain.stats)
