"""With torch: tensors without a copy, torch's own data loaders over a dataset, ranks from torch.distributed."""

from __future__ import annotations

import datetime
import enum
import json
import multiprocessing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

import shardex as sx
from shardex.errors import ArgumentError, SchemaError

torch = pytest.importorskip("torch")

SCHEMA = {"x": "int64", "image": sx.Array("float32", (2, 3)), "tokens": sx.Array("int32", (None,)), "name": str}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("torch") / "data")
    with sx.create(path, SCHEMA) as out:
        for k in range(50):
            image = np.full((2, 3), k, np.float32)
            out.append(x=k, image=image, tokens=np.arange(k % 5, dtype=np.int32), name=f"n{k}")
    return path


# -- Loader(to="torch") ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_as_tensors(folder: str, workers: int) -> None:
    with sx.Loader(folder, 8, to="torch", workers=workers, worker_type="process") as loader:
        batch = next(iter(loader))
    assert batch.x.tolist() == list(range(8)) and batch.x.dtype == torch.int64
    assert batch.image.shape == (8, 2, 3) and batch.image.dtype == torch.float32
    lengths = batch.lengths_of("tokens")
    assert batch.tokens.shape == (8, 4) and batch.mask_of("tokens").sum(1).tolist() == lengths.tolist()
    assert batch.mask.all() and batch.mask.dtype == torch.bool
    assert batch.name[7] == "n7"
    batch.image += 1  # tensors are writable


def test_tensors_share_the_memory_of_the_arrays(folder: str) -> None:
    from shardex.loader.tensors import to_tensors

    columns = sx.open(folder).read(range(4), ["x", "image"])
    tensors = to_tensors(columns)
    assert all(tensors[name].data_ptr() == columns[name].ctypes.data for name in ("x", "image"))


def test_packed_tensors(folder: str) -> None:
    packed = next(iter(sx.Loader(folder, 5, to="torch", ragged="pack"))).tokens
    assert packed.values.tolist() == [0, 0, 1, 0, 1, 2, 0, 1, 2, 3] and packed.offsets.tolist() == [0, 0, 1, 3, 6, 10]
    assert len(packed) == 5 and packed[-1].tolist() == [0, 1, 2, 3]
    listed = next(iter(sx.Loader(folder, 3, to="torch", ragged="list"))).tokens
    assert [one.tolist() for one in listed] == [[], [0], [0, 1]] and isinstance(listed[0], torch.Tensor)


def as_tensor(sample: sx.DictSample) -> dict[str, Any]:
    return {"pixels": torch.from_numpy(sample.image.copy()), "x": sample.x}


@pytest.mark.parametrize("workers", [0, 1])
def test_transform_may_return_tensors(folder: str, workers: int) -> None:
    with sx.Loader(folder, 4, to="torch", transform=as_tensor, workers=workers) as loader:
        batch = next(iter(loader))
    assert batch.pixels.shape == (4, 2, 3) and batch.pixels[3, 0, 0] == 3 and batch.x.tolist() == [0, 1, 2, 3]


def test_tensors_of_a_transform_have_the_forms_of_arrays(folder: str) -> None:
    def change(sample: sx.DictSample) -> dict[str, Any]:
        return {"t": torch.arange(2 + sample.x // 4), "n": torch.tensor(sample.x), "half": torch.ones(2).bfloat16()}

    first, second = list(sx.Loader(sx.open(folder)[2:10], 4, to="torch", transform=change))
    assert first.lengths_of("t").tolist() == [2, 2, 3, 3] and second.lengths_of("t").tolist() == [3, 3, 4, 4]
    assert first.t.shape == first.mask_of("t").shape == (4, 3) and first.n.tolist() == [2, 3, 4, 5]
    assert first.half.shape == (4, 2) and first.half.dtype == torch.bfloat16
    alone = next(iter(sx.Loader(sx.open(folder)[:4], 4, to="torch", transform=change, ragged={"t": "pack"})))
    assert alone.t.offsets.tolist() == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("workers", [0, 1])
def test_tensors_of_a_transform_stay_tensors_in_a_batch_of_arrays(folder: str, workers: int) -> None:
    def change(sample: sx.DictSample) -> dict[str, Any]:
        return {**as_tensor(sample), "t": torch.arange(sample.x), "n": torch.tensor(sample.x), "d": [1, 2]}

    with sx.Loader(folder, 4, transform=change, workers=workers, dtype={"n": "int32"}) as loader:
        batch = next(iter(loader))
    mapped = next(iter(sx.Loader(sx.open(folder).map(change), 4)))
    assert [type(mapped[name]) for name in ("pixels", "n")] == [torch.Tensor] * 2
    assert [type(batch[name]) for name in ("pixels", "t", "n")] == [torch.Tensor] * 3
    assert batch.pixels.shape == (4, 2, 3) and batch.t.shape == (4, 3) and batch.n.dtype == torch.int32
    assert type(batch.x) is type(batch.mask_of("t")) is np.ndarray and batch.d[0] == [1, 2]


@pytest.mark.parametrize(
    ("transform", "workers"),
    [(None, 0), (as_tensor, 0), (as_tensor, 1), pytest.param(None, 1, marks=pytest.mark.long)],
)
def test_collate_gets_tensors(folder: str, transform: Any, workers: int) -> None:
    def collate(batch: Any) -> Any:
        return batch.x * 2, batch.mask, batch.mask_of("x"), batch.origin.rows.tolist()

    with sx.Loader(folder, 4, to="torch", transform=transform, collate=collate, workers=workers) as loader:
        doubled, mask, known, rows = next(iter(loader))
    assert doubled.tolist() == [0, 2, 4, 6] and rows == [0, 1, 2, 3]
    assert mask.dtype == known.dtype == torch.bool and mask.all() and known.all()


@pytest.mark.parametrize("options", [{}, {"to": "torch"}, {"to": "torch", "device": "cpu"}, {"workers": 1}])
def test_collate_dict_gives_dicts(folder: str, options: Any) -> None:
    with sx.Loader(folder, 4, collate=dict, **options) as loader, sx.Loader(folder, 4, **options) as plain:
        found, expected = next(iter(loader)), next(iter(plain))
    assert type(found) is dict and list(found) == expected.keys() and loader.origin is not None
    assert all(type(found[name]) is type(expected[name]) for name in found)
    assert found["x"].tolist() == [0, 1, 2, 3] and loader.replay(0)["x"].tolist() == [0, 1, 2, 3]


def test_masks_move_with_their_batch() -> None:
    batch = next(iter(sx.Loader([{"x": None, "t": "a"}, {"x": 2.0, "t": None}], 2, to="torch")))
    moved = batch.to("cpu")
    assert moved.mask_of("x").tolist() == [False, True] and moved.x[1] == 2 and moved.t == ["a", None]


def test_default_collate_of_torch_takes_a_batch(folder: str) -> None:
    collate = torch.utils.data.default_collate
    batch = next(iter(sx.Loader(folder, 4, fields=["x", "image", "name"], collate=collate)))
    assert batch["image"].shape == (4, 2, 3) and batch["name"] == ["n0", "n1", "n2", "n3"]


def test_dates_become_tensors_of_whole_numbers() -> None:
    data = [{"when": np.array(["1970-01-02"], "datetime64[D]"), "day": datetime.date(1970, 1, k)} for k in (2, 3)]
    days = sx.open(pa.table({"day": [one["day"] for one in data]}))
    batch = next(iter(sx.Loader(days, 2, to="torch")))
    assert batch.day.dtype == torch.int64 and batch.day.tolist() == [1, 2]
    assert next(iter(sx.Loader([{"when": one["when"]} for one in data], 2, to="torch"))).when.tolist() == [[1], [1]]


def test_type_that_torch_lacks_raises_and_names_the_field() -> None:
    data = [{"word": np.array(["a"])}, {"word": np.array(["b"])}]
    with pytest.raises(SchemaError, match="expected numbers for a tensor, got <U1 - at field word"):
        next(iter(sx.Loader(data, 2, to="torch")))


def test_other_byte_orders_become_tensors() -> None:
    data = [{"a": np.arange(3, dtype=">i4")}, {"a": np.arange(3, dtype=">i4")}]
    assert next(iter(sx.Loader(data, 2, to="torch"))).a.tolist() == [[0, 1, 2], [0, 1, 2]]


def test_pinned_memory(folder: str) -> None:
    """Tensors are pinned if there is an accelerator; otherwise torch raises its own error."""
    loader = sx.Loader(folder, 4, to="torch", pin_memory=True, fields=["x"])
    if torch.cuda.is_available():
        assert next(iter(loader)).x.is_pinned()
    else:
        with pytest.raises(RuntimeError, match=r"accelerator|CUDA"):
            next(iter(loader))


# -- torch data loaders ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "context"), [(0, None), (2, "fork"), (1, "forkserver")])
def test_dataset_in_a_torch_dataloader(folder: str, workers: int, context: str | None) -> None:
    ds = sx.open(folder).select("x", "image", "name")
    assert ds[0].x == 0  # already open before the workers start, as in most scripts
    loader = torch.utils.data.DataLoader(
        ds, batch_size=8, shuffle=True, num_workers=workers, multiprocessing_context=context
    )
    batches = list(loader)
    assert sorted(x for batch in batches for x in batch["x"].tolist()) == list(range(50))
    assert all((batch["image"][:, 0, 0] == batch["x"]).all() for batch in batches)


@pytest.mark.filterwarnings("ignore:.*set_vital.*", "ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_dataloader_resumes_exactly(folder: str, workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def make() -> Any:
        torch.manual_seed(3)
        return stateful.StatefulDataLoader(sx.open(folder).select("x"), batch_size=4, shuffle=True, num_workers=workers)

    straight = [batch["x"].tolist() for batch in make()]
    first = make()
    run = iter(first)
    seen = [next(run)["x"].tolist() for _ in range(5)]
    state = first.state_dict()
    second = make()
    second.load_state_dict(state)
    assert seen + [batch["x"].tolist() for batch in second] == straight


# -- ranks ----------------------------------------------------------------------------------------------------------


def run_rank(folder: str, store: Path, rank: int, world: int, out: Path) -> None:
    """Iterate over loaders that were made, and one that was used, before the process group began."""
    dist = torch.distributed
    options: dict[str, Any] = {"shuffle": True, "seed": 9, "to": "torch", "fields": ["x"]}
    loader: sx.Loader[Any] = sx.Loader(folder, 4, workers=1, worker_type="thread", **options)
    by_tokens = sx.Loader(folder, fields=["tokens"], max_tokens=20)
    alone = len(loader), len(by_tokens)
    assert (loader.rank, loader.world_size, len(next(iter(loader)))) == (0, 1, 4)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    assert len(loader) == -(-alone[0] // world) and len(by_tokens) < alone[1]
    loader.seek()
    taken, states = [], []
    for batch in loader:
        total = batch.x[batch.mask].sum()
        dist.all_reduce(total)  # hangs if one rank has a batch more than the other
        taken.append([batch.x[batch.mask].tolist(), int(total)])
        states.append(loader.state_dict())
    all_states = [None] * world
    dist.all_gather_object(all_states, states)
    assert all(one == states for one in all_states), "ranks disagree on where they are"
    out.write_text(json.dumps([loader.rank, loader.world_size, taken]))
    dist.destroy_process_group()


@pytest.fixture
def gloo(tmp_path: Path, folder: str) -> Iterator[list[Any]]:
    """The batches that two processes connected by gloo got. They are forked, because torch is imported slowly."""
    outs = [tmp_path / f"{rank}.json" for rank in range(2)]
    arguments = [(folder, tmp_path / "store", rank, 2, outs[rank]) for rank in range(2)]
    running = [multiprocessing.get_context("fork").Process(target=run_rank, args=some) for some in arguments]
    for process in running:
        process.start()
    try:
        for process in running:
            process.join(90)
        assert [process.exitcode for process in running] == [0, 0]
        yield [json.loads(out.read_text()) for out in outs]
    finally:
        for process in running:
            process.kill()


def test_two_processes_over_gloo_divide_all_samples(gloo: list[Any], folder: str) -> None:
    (rank0, world0, first), (rank1, world1, second) = gloo
    assert (rank0, world0, rank1, world1) == (0, 2, 1, 2)
    assert len(first) == len(second) == 7
    alone = [x for batch in sx.Loader(folder, 8, shuffle=True, seed=9, rank=0, world_size=1) for x in batch.x.tolist()]
    merged = [x for (a, total), (b, _) in zip(first, second, strict=True) for x in [*a, *b] if sum(a + b) == total]
    assert merged == alone


def test_world_size_without_init_process_group_warns(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = sx.Loader(folder, 4)  # init_process_group may come later
    assert (loader.rank, loader.world_size) == (0, 1)
    with pytest.warns(UserWarning, match="WORLD_SIZE is 2, but torch.distributed is not initialised") as warned:
        iter(loader)
    assert warned[0].filename == __file__
    iter(sx.Loader(folder, 4, rank=1, world_size=2))


def test_batches_move_to_a_device() -> None:
    data = [{"x": k, "v": np.arange(k + 1), "name": "a", "j": {"k": k}} for k in range(4)]
    for form in ("pad", "pack", "list"):
        batch = next(iter(sx.Loader(data, 4, to="torch", ragged=form)))
        moved = batch.to("meta", non_blocking=True)
        assert type(moved) is type(batch) and moved.x.device.type == "meta" and batch.x.device.type == "cpu"
        assert moved.name == ["a"] * 4 and moved.j[1] == {"k": 1}
        assert moved.origin is batch.origin and moved.mask.device.type == "meta"
        if form == "pad":
            assert moved.v.device.type == moved.mask_of("v").device.type == "meta"
        elif form == "pack":
            assert moved.v.values.device.type == moved.v.offsets.device.type == "meta"
        else:
            assert [one.device.type for one in moved.v] == ["meta"] * 4


def test_a_batch_of_arrays_says_how_to_get_tensors() -> None:
    for batch in (next(sx.open([{"x": 1}]).ordered(1)), next(iter(sx.Loader([{"x": 1}], 1)))):
        with pytest.raises(ArgumentError, match=r'got int64\[1\] - at field x; .* Loader\(..., to="torch"\)'):
            batch.to("cpu")
    with pytest.raises(ArgumentError, match="got none in name"):
        next(iter(sx.Loader([{"name": "a"}], 1, to="torch"))).to("cpu")


class Level(enum.Enum):
    LOW = 1
    HIGH = 2


@dataclass
class Reading:
    x: NDArray[np.float32]
    level: Level
    n: int


def test_samples_of_a_class_have_its_values(tmp_path: Path) -> None:
    data = sx.write(tmp_path / "d", [Reading(np.ones(2, np.float32), Level.HIGH, k) for k in range(4)])
    batch = next(iter(sx.Loader(sx.open(data, Reading), 4, to="torch")))
    for sample in (batch[1], batch.samples[1]):
        assert sample.level is Level.HIGH and type(sample.n) is int and type(sample.x) is np.ndarray
    assert batch.x.dtype == torch.float32
