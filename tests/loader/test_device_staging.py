"""Batches on a device: the same pipeline with ordinary memory on the CPU, and on a CUDA device where there is one."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.errors import ArgumentError
from shardex.kernel import pooled_empty
from shardex.loader import device_staging as staging

torch = pytest.importorskip("torch")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA"))]
SCHEMA = {
    "x": sx.Array("float32", (1000,)),
    "y": int,
    "words": sx.Array("int32", (None,)),
    "maybe": sx.Optional("float32"),
    "name": str,
}
COUNT = 300


def sample(k: int) -> dict[str, Any]:
    words = np.arange(k % 7, dtype=np.int32)
    return {
        "x": np.full(1000, k, np.float32),
        "y": k,
        "words": words,
        "maybe": None if k % 5 == 0 else k / 2,
        "name": f"n{k}",
    }


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("staging") / "data")
    sx.write(path, map(sample, range(COUNT)), SCHEMA)
    return path


@pytest.fixture(scope="module")
def ds(path: str) -> sx.Dataset:
    return sx.open(path)


def same(there: Any, here: Any) -> None:
    """Raise if a batch on a device differs from the arrays of another one."""
    assert len(there) == len(here) and there.keys() == here.keys() and there.name == here.name
    for name in ("x", "y", "maybe"):
        np.testing.assert_array_equal(there[name].cpu().numpy(), here[name])
    np.testing.assert_array_equal(there.mask_of("maybe").cpu().numpy(), here.mask_of("maybe"))
    np.testing.assert_array_equal(there.lengths_of("words").cpu().numpy(), here.lengths_of("words"))
    np.testing.assert_array_equal(there.words.cpu().numpy(), here.words)
    assert there.origin.rows.tolist() == here.origin.rows.tolist()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("workers", "kind"), [(0, "thread"), (3, "thread"), (2, "process")])
def test_batches_that_are_held_are_never_overwritten(ds: sx.Dataset, device: str, workers: int, kind: Any) -> None:
    here = list(sx.Loader(ds, 16, shuffle=True, seed=1, epochs=2))
    with sx.Loader(
        ds, 16, shuffle=True, seed=1, epochs=2, to="torch", device=device, workers=workers, worker_type=kind
    ) as loader:
        there = list(loader)
    assert len(there) == len(here) == 38
    for one, other in zip(there, here, strict=True):
        assert one.x.device.type == one.mask.device.type == device
        same(one, other)
    there[0].x += 1  # tensors are writable, and share no memory with those of other batches
    same(there[1], here[1])


@pytest.mark.parametrize("device", DEVICES)
def test_buffers_are_used_again(ds: sx.Dataset, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    class Counted(staging.HostBuffer):
        def __init__(self, size: int, *, pin: bool) -> None:
            made.append(size)
            super().__init__(size, pin=pin)

    monkeypatch.setattr(staging, "HostBuffer", Counted)
    with sx.Loader(ds, 16, epochs=20, to="torch", device=device) as loader:
        assert sum(len(batch) for batch in loader) == 20 * COUNT
    assert len(made) < 12


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", ["pack", "list"])
def test_other_forms_of_ragged_fields(ds: sx.Dataset, device: str, form: Any) -> None:
    here = next(iter(sx.Loader(ds, 16, ragged=form)))
    with sx.Loader(ds, 16, ragged=form, to="torch", device=device) as loader:
        there = next(iter(loader))
    if form == "pack":
        assert there.words.values.device.type == there.words.offsets.device.type == device
        assert there.words.values.tolist() == here.words.values.tolist()
    assert [there.words[k].tolist() for k in range(16)] == [here.words[k].tolist() for k in range(16)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_continues_after_break_and_resume(ds: sx.Dataset, device: str, workers: int) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 5, "to": "torch", "device": device, "workers": workers}
    expected = [batch.y.tolist() for batch in sx.Loader(ds, 16, shuffle=True, seed=5)]
    taken: list[list[int]] = []
    with sx.Loader(ds, 16, worker_type="thread", **options) as loader:
        for batch in loader:
            taken.append(batch.y.tolist())
            if len(taken) == 5:
                break
        state = loader.state_dict()
        assert loader.replay(2).y.tolist() == expected[2]
    with sx.Loader(ds, 16, worker_type="thread", **options) as loader:
        loader.load_state_dict(state)
        taken += [batch.y.tolist() for batch in loader]
    assert taken == expected


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("workers", "kind"), [(0, "auto"), (2, "thread"), (1, "process")])
def test_errors_of_a_transform_come_after_the_batches_before(
    ds: sx.Dataset, device: str, workers: int, kind: Any
) -> None:
    def fail(sample: Any) -> dict[str, Any]:
        if sample.y == 100:
            raise ZeroDivisionError("at 100")
        return {"y": sample.y}

    with sx.Loader(ds, 16, transform=fail, to="torch", device=device, workers=workers, worker_type=kind) as loader:
        taken: list[Any] = []
        with pytest.raises(ZeroDivisionError, match="at 100"):
            taken.extend(batch.y.tolist() for batch in loader)
        assert loader.step == 6
        loader.skip(1)
        assert next(iter(loader)).y[0] == 112


def test_a_bad_sample_is_replaced(ds: sx.Dataset) -> None:
    def fail(sample: Any) -> dict[str, Any]:
        return {"y": sample.y, "z": 1 // (sample.y != 5)}

    with sx.Loader(ds, 16, transform=fail, to="torch", device="cpu", on_error="skip") as loader:
        batch = next(iter(loader))
    assert [bad.position for bad in loader.skipped] == [5] and batch.mask.tolist().index(False) == 5


@pytest.mark.parametrize("device", DEVICES)
def test_errors_while_copying_are_raised_with_a_note(
    ds: sx.Dataset, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device that has no memory left, for example."""

    def fail(*_: Any) -> Any:
        raise RuntimeError("out of memory")

    with sx.Loader(ds, 16, to="torch", device=device) as loader:
        with monkeypatch.context() as patch:
            patch.setattr(staging._Transfer, "run", fail)
            with pytest.raises(RuntimeError, match="out of memory") as raised:
                next(iter(loader))
        assert f"copied to {device}" in raised.value.__notes__[0]
        assert next(iter(loader)).y.tolist() == list(range(16))


def test_what_a_reader_keeps_is_not_overwritten() -> None:
    """A reader may cache arrays that it allocated; their memory is left to it."""

    class Keeping:
        in_python = False

        def __init__(self) -> None:
            self.kept: list[Any] = []

        def __len__(self) -> int:
            return 64

        def read(self, rows: Any, fields: Any = None) -> sx.Columns:
            out = pooled_empty((len(rows), 100), np.int64)
            out[:] = rows[:, None]
            self.kept.append((out, rows.copy()))
            return sx.Columns({"x": out})

    rows = Keeping()
    with sx.Loader(sx.open(rows), 4, epochs=10, to="torch", device="cpu") as loader:
        for batch in loader:
            batch.x.zero_()
    for out, numbers in rows.kept:
        assert (out == numbers[:, None]).all()


def test_collate_may_return_anything(ds: sx.Dataset) -> None:
    def collate(batch: Any) -> Any:
        return {"x": batch.x, "pair": (batch.name[0], [torch.ones(2)])}

    with sx.Loader(ds, 4, collate=collate, to="torch", device="meta") as loader:
        found = next(iter(loader))
    assert found["x"].device.type == found["pair"][1][0].device.type == "meta" and found["pair"][0] == "n0"


def test_images_have_their_channels_first(tmp_path: Path) -> None:
    pytest.importorskip("simplejpeg")
    pictures = sx.write(
        tmp_path / "i", [{"image": np.full((4, 6, 3), k, np.uint8)} for k in range(8)], {"image": sx.Image()}
    )
    here = next(iter(sx.Loader(pictures, 8, to="torch"))).image
    cast = {"image": sx.Cast("float32", mean=(0, 1, 2))}
    with sx.Loader(pictures, 8, to="torch", device="cpu", dtype=cast) as loader:
        there = next(iter(loader)).image
    assert there.shape == (8, 3, 4, 6) and there.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(there, here.float() - torch.arange(3).reshape(3, 1, 1))


def test_several_loaders_at_once(ds: sx.Dataset) -> None:
    loaders = [sx.Loader(ds, 16, shuffle=True, seed=seed, to="torch", device="cpu") for seed in range(3)]
    others = [sx.Loader(ds, 16, shuffle=True, seed=seed) for seed in range(3)]
    for there, here in zip(zip(*loaders, strict=True), zip(*others, strict=True), strict=True):
        for one, other in zip(there, here, strict=True):
            same(one, other)
    for loader in loaders:
        loader.close()


def test_closing_ends_the_thread_and_a_new_loop_starts_another(ds: sx.Dataset) -> None:
    loader = sx.Loader(ds, 16, to="torch", device="cpu", epochs=None, keep_position=True)
    batch = next(iter(loader))
    loader.close()
    gc.collect()
    assert batch.y.tolist() == list(range(16))
    assert next(iter(loader)).y.tolist() == list(range(16, 32))
    loader.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "cpu"}, r'expected to="torch" together with device=\'cpu\''),
        ({"to": "torch", "device": "gpu"}, r"expected a device of torch, such as 'cuda', .* got 'gpu'"),
        ({"to": "torch", "device": 1.5}, r"expected a device of torch"),
        ({"to": "torch", "device": "cuda:99"}, r"got 'cuda:99': torch sees \d+ CUDA devices"),
    ],
)
def test_wrong_devices_raise(ds: sx.Dataset, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        sx.Loader(ds, 4, **options)


SCRIPT = """
import os, sys
import shardex as sx
loader = sx.Loader(sx.open(sys.argv[1]), 16, to="torch", device="cpu", epochs=None)
first = next(iter(loader)).y.tolist()
if os.fork() == 0:
    loader.seek()
    sys.exit(0 if next(iter(loader)).y.tolist() == first else 7)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
loader.seek()
for batch in loader:
    break
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process")
def test_forked_processes_and_the_end_of_the_interpreter(path: str) -> None:
    """A loop that is left open ends with the interpreter; a forked process has its own thread."""
    script = [sys.executable, "-W", "ignore", "-c", SCRIPT, path]
    ended = subprocess.run(script, capture_output=True, text=True, timeout=100, check=False)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_pinned_batches_that_are_copied_by_the_user(ds: sx.Dataset) -> None:
    here = list(sx.Loader(ds, 16, shuffle=True))
    there = []
    for batch in sx.Loader(ds, 16, shuffle=True, to="torch", pin_memory=True):
        assert batch.x.is_pinned() and batch.words.is_pinned()
        there.append(batch.x.to("cuda", non_blocking=True))
    for one, other in zip(there, here, strict=True):
        np.testing.assert_array_equal(one.cpu().numpy(), other.x)
