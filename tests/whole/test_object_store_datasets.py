"""Datasets in a real S3 server: write, read, edit, train."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.errors import AlreadyExistsError, CommitConflict, ConditionalPutError, ForkSafetyError, ShardexError
from shardex.sources import open_source
from tests.servers import KEY, SECRET

SCHEMA = {"id": int, "x": sx.Array("float32", (16,)), "text": str}


def samples(count: int = 200) -> list[dict[str, Any]]:
    return [{"id": k, "x": np.full(16, k, "f4"), "text": f"sample {k}"} for k in range(count)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHARDEX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def ds(bucket: str) -> sx.Dataset:
    return sx.write(f"{bucket}/d", samples(), SCHEMA, key="id", shard_rows=64, progress=False)


_EARLIER = threading.local()
"""What `run_earlier` runs before it is called for the first time; no part of its fingerprint."""


def run_earlier(sample: Any) -> Any:
    if (run := vars(_EARLIER).pop("run", None)) is not None:
        run()
    return sample


def test_append_publishes_once_if_another_run_ends_while_it_begins(ds: sx.Dataset, bucket: str) -> None:
    def append() -> None:
        sx.write(f"{bucket}/d", new, mode="append", transform=run_earlier, progress=False)

    new = samples(205)[200:]
    vars(_EARLIER)["run"] = append
    with pytest.raises(AlreadyExistsError, match="another run of the same job has written it meanwhile"):
        append()
    assert same(list(sx.open(f"{bucket}/d")), samples(205))
    assert {path.partition("/")[0] for path in open_source(bucket).paths()} == {"d"}


def same(found: Any, wanted: Any) -> bool:
    return [one["id"] for one in found] == [one["id"] for one in wanted] and all(
        np.array_equal(a["x"], b["x"]) and a["text"] == b["text"] for a, b in zip(found, wanted, strict=True)
    )


def test_write_read_edit_compact_and_verify(ds: sx.Dataset, bucket: str) -> None:
    assert len(ds) == 200 and same(list(ds), samples())
    assert ds.get(17).text == "sample 17" and len(ds.where("id >= ?", [150])) == 50
    with sx.edit(f"{bucket}/d", progress=False) as tx:
        tx.update(3, text="changed")
        tx.delete([5])
        tx.add_field("score", "float32", np.arange(200, dtype="f4"))
    now = sx.open(f"{bucket}/d")
    assert (len(now), now.get(3).text, now.get(6).score) == (199, "changed", 6.0)
    assert len(ds) == 200 and same(list(ds), samples())  # a reader keeps its version
    assert [one.number for one in sx.store.history(f"{bucket}/d")] == [1, 2]
    sx.compact(f"{bucket}/d", progress=False)
    assert [s.id for s in sx.open(f"{bucket}/d")] == [k for k in range(200) if k != 5]
    assert sx.verify(f"{bucket}/d", progress=False) == []


def test_add_field_and_compact_by_workers(ds: sx.Dataset, bucket: str, tmp_path: Path) -> None:
    local = str(tmp_path / "d")
    sx.write(local, ds, shard_rows=64, key="id", progress=False)
    for path, workers in ((local, None), (f"{bucket}/d", 2)):
        with sx.edit(path, progress=False) as tx:
            tx.add_field("twice", "int64", lambda sample: 2 * sample.id, workers=workers)
        assert sx.open(path)[150].twice == 300
        assert sx.compact(path, shard_size=60_000, workers=workers, progress=False) == 3
    assert sx.open(local).fingerprint == sx.open(f"{bucket}/d").fingerprint
    assert sx.verify(f"{bucket}/d", progress=False) == []
    assert [path for path in open_source(bucket).paths() if not path.startswith("d/")] == []


def test_second_of_two_conflicting_edits_raises(ds: sx.Dataset, bucket: str) -> None:
    one, two = sx.edit(f"{bucket}/d"), sx.edit(f"{bucket}/d")
    one.update(1, text="one")
    two.update(1, text="two")
    one.commit()
    with pytest.raises(CommitConflict, match="the field text"):
        two.commit()
    assert sx.open(f"{bucket}/d").get(1).text == "one"


def test_store_without_conditional_put_is_refused(careless_bucket: str) -> None:
    with pytest.raises(ConditionalPutError):
        sx.write(f"{careless_bucket}/d", samples(3), SCHEMA, progress=False)
    assert open_source(careless_bucket).paths("d/_shardex") == []


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_batches_equal_local_batches(ds: sx.Dataset, bucket: str, workers: int) -> None:
    """Worker processes get the credentials from the parent process."""
    options: dict[str, Any] = {"shuffle": True, "seed": 3, "epochs": 2}
    remote = sx.Loader(sx.open(f"{bucket}/d"), 32, workers=workers, worker_type="process", **options)
    local = sx.Loader(sx.open(samples()), 32, **options)
    with remote:
        assert [b.id.tolist() for b in remote] == [b.id.tolist() for b in local]


def test_secrets_are_in_no_pickle_and_no_message(ds: sx.Dataset) -> None:
    shown = pickle.dumps(ds) + repr(ds).encode() + repr(ds.rows).encode()
    with pytest.raises(ShardexError) as failed:
        sx.open("s3://no-such-bucket-here/x")
    assert b"testsecret" not in shown + str(failed.value).encode() and len(pickle.dumps(ds)) < 4096


def test_tar_and_jsonl_equal_local_files(bucket: str, tmp_path: Path) -> None:
    place = open_source(bucket)
    sx.write(tmp_path / "tars", samples(50), {**SCHEMA, "id": int}, format="tar", shard_rows=20)
    for path in sorted((tmp_path / "tars").iterdir()):
        if path.is_file():
            place.put(f"tars/{path.name}", path.read_bytes())
    place.put("lines/a.jsonl", "".join(json.dumps({"n": k}) + "\n" for k in range(40)).encode())
    there, here = sx.open(f"{bucket}/tars"), sx.open(tmp_path / "tars")
    assert len(there) == len(here) == 50 and there.fields == here.fields
    assert [list(sample) for sample in there] == [list(sample) for sample in here]
    assert [sample.n for sample in sx.open(f"{bucket}/lines/*.jsonl").where("n >= 37")] == [37, 38, 39]


def test_adopt_remote_jsonl_and_add_a_field(bucket: str, tmp_path: Path) -> None:
    place = open_source(bucket)
    place.put("lines/a.jsonl", b'{"n": 1}\n{"n": 2}\n')
    sx.adopt(f"{bucket}/lines/a.jsonl", tmp_path / "beside")
    with sx.edit(tmp_path / "beside", trust_paths=True, progress=False) as tx:
        tx.add_field("double", int, lambda sample: 2 * sample.n)
    assert [s.double for s in sx.open(tmp_path / "beside", trust_paths=True)] == [2, 4]
    open_source(bucket).put("lines/a.jsonl", b'{"n": 1}\n{"n": 3}\n')
    with pytest.raises(ShardexError, match="expected"):
        list(sx.open(tmp_path / "beside", trust_paths=True))


def _first(ds: sx.Dataset, said: Any) -> None:
    try:
        said.put(ds[150].text)
    except ForkSafetyError as error:
        said.put(f"refused: {error}")


def test_forked_child_reads_or_raises_fork_safety_error(bucket: str) -> None:
    sx.write(f"{bucket}/d", samples(), SCHEMA, shard_rows=64, progress=False)
    ds = sx.open(f"{bucket}/d", access="ranged")
    assert ds[0].id == 0
    context = multiprocessing.get_context("fork")
    said = context.Queue()
    child = context.Process(target=_first, args=(ds, said))
    child.start()
    answer = said.get(timeout=60)
    child.join(60)
    assert answer == "sample 150" or (answer.startswith("refused") and "spawn" in answer)


def test_second_epoch_comes_from_the_cache(ds: sx.Dataset, bucket: str) -> None:
    ds = sx.open(f"{bucket}/d")
    first = [b.id.tolist() for b in ds.shuffled(32, seed=1)]
    source = ds.rows.opened_source() if hasattr(ds.rows, "opened_source") else None
    assert [b.id.tolist() for b in sx.open(f"{bucket}/d").shuffled(32, seed=1)] == first
    assert source is None or source.fetched > 0
    assert os.listdir(os.environ["SHARDEX_CACHE"])


TORCH_PROGRAM = """
import os, pickle, sys, tempfile
import shardex as sx

def plain(samples):
    return [(sample.n, "testsecret" in str(dict(os.environ))) for sample in samples]

if __name__ == "__main__":
    url, endpoint, key, secret, method = sys.argv[1:]
    if method == "forkserver":  # started before the keys are known: its environment is that of an earlier time
        import multiprocessing
        multiprocessing.get_context(method).Process(target=print).start()
    sx.storage(url, endpoint=endpoint, access_key_id=key, secret_access_key=secret, region="us-east-1", allow_http=True)
    from torch.utils.data import DataLoader
    ds = sx.open(url)
    assert secret.encode() not in pickle.dumps(ds) and b"keyring" not in pickle.dumps(ds)
    loader = DataLoader(ds, batch_size=5, num_workers=1, multiprocessing_context=method, collate_fn=plain)
    found = [pair for batch in loader for pair in batch]
    assert found == [(n, False) for n in range(20)], found
    (keyring,) = [one for one in os.listdir(tempfile.gettempdir()) if one.startswith("shardex-")]
    folder = os.path.join(tempfile.gettempdir(), keyring)
    assert os.stat(folder).st_mode & 0o777 == 0o700
    assert os.stat(os.path.join(folder, "keyring.json")).st_mode & 0o777 == 0o600
"""


@pytest.mark.parametrize("method", [pytest.param("spawn", marks=pytest.mark.long), "forkserver"])
def test_keys_reach_workers_of_torch(bucket: str, seaweed: str, tmp_path: Path, method: str) -> None:
    """As `docs/remote.md` shows it; the keys are neither in the pickle nor in the environment, and no file is left."""
    pytest.importorskip("torch")
    sx.write(bucket, [{"n": n} for n in range(20)])
    program = tmp_path / "train.py"
    program.write_text(TORCH_PROGRAM)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    # Sockets of multiprocessing lie in the temporary folder, and their paths have at most 107 bytes.
    with tempfile.TemporaryDirectory() as temporary:
        done = subprocess.run(
            [sys.executable, str(program), bucket, seaweed, KEY, SECRET, method],
            env={**clean, "TMPDIR": temporary, "SHARDEX_CACHE": str(tmp_path / "cache")},
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert not [name for name in os.listdir(temporary) if name.startswith("shardex-")]


def test_a_path_that_does_not_exist_is_called_so(bucket: str) -> None:
    for url in (f"{bucket}/nothing", f"{bucket}/nothing.parquet"):
        with pytest.raises(FileNotFoundError, match=r"no such file or folder: 404.*nothing"):
            sx.open(url)
