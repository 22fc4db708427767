"""Random rows of a dataset in S3: requests and bytes for opening it and for the rows, shardex beside other readers.

`far.py --rows 1000` runs it. All readers get the same samples (1000 bytes and a number), on one SeaweedFS of this
machine, through one proxy that counts requests and bytes, each in a process of its own with an empty cache. "raw
obstore" asks a file without any format for exactly these rows (`get_ranges`): what a reader without checks could reach.
A reader that is not installed or does not run is left out with its reason; `--peer-python` names the interpreter of an
environment that has them, and `--before` the `src` of another checkout of shardex with a built kernel.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

WIDTH = 1000
KEYS = ("testkey", "testsecret-0123456789")
BUCKET = "bench"


def pieces(rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Bytes and numbers of the samples, 10 000 at a time."""
    chance = np.random.default_rng(1)
    for begin in range(0, rows, 10_000):
        count = min(10_000, rows - begin)
        yield chance.integers(0, 256, (count, WIDTH), np.uint8), np.arange(begin, begin + count)


class Reader:
    """Files of one kind, written here and read from S3."""

    module = ""

    def load(self) -> None:
        """Import what opening needs, which is not measured."""
        importlib.import_module(self.module)

    def build(self, folder: Path, rows: int) -> None:
        raise NotImplementedError

    def open(self, endpoint: str, path: str, cache: str) -> None:
        raise NotImplementedError

    def read(self, rows: np.ndarray) -> Any:
        """Return the numbers of these rows, after all of them were read."""
        raise NotImplementedError


class Shardex(Reader):
    """The library with its defaults, and access by ranges."""

    module = "shardex"

    def build(self, folder: Path, rows: int) -> None:
        import shardex as sx

        with sx.create(folder, {"x": sx.Array("uint8", (WIDTH,)), "k": int}) as out:
            for x, numbers in pieces(rows):
                out.extend({"x": x[k], "k": int(numbers[k])} for k in range(len(x)))

    def open(self, endpoint: str, path: str, cache: str) -> None:
        import shardex as sx

        key, secret = KEYS
        options = {"access_key_id": key, "secret_access_key": secret, "region": "us-east-1"}
        sx.storage(f"s3://{BUCKET}", endpoint=endpoint, allow_http=True, **options)
        self.dataset = sx.open(f"s3://{BUCKET}/{path}", cache=cache, access="ranged")

    def read(self, rows: np.ndarray) -> Any:
        return self.dataset.read(rows)["k"]


class Singly(Shardex):
    """The same, a sample at a time."""

    def read(self, rows: np.ndarray) -> Any:
        return [self.dataset[row].k for row in rows.tolist()]


class Obstore(Reader):
    """The rows of a plain file, without numbers and checks."""

    module = "obstore.store"

    def build(self, folder: Path, rows: int) -> None:
        folder.mkdir()
        with (folder / "rows").open("wb") as file:
            for x, _ in pieces(rows):
                file.write(x.data)

    def open(self, endpoint: str, path: str, cache: str) -> None:
        from obstore.store import S3Store

        key, secret = KEYS
        options = {"access_key_id": key, "secret_access_key": secret, "region": "us-east-1"}
        client = {"allow_http": True}
        self.store = S3Store(BUCKET, prefix=path, endpoint=endpoint, client_options=client, **options)

    def read(self, rows: np.ndarray) -> Any:
        import obstore

        starts = (rows * WIDTH).tolist()
        found = obstore.get_ranges(self.store, "rows", starts=starts, lengths=[WIDTH] * len(starts), coalesce=0)
        assert all(len(one) == WIDTH for one in found)
        return rows


class Lance(Reader):
    """Lance with its defaults."""

    module = "lance"

    def build(self, folder: Path, rows: int) -> None:
        import lance
        import pyarrow as pa

        schema = pa.schema({"x": pa.list_(pa.uint8(), WIDTH), "k": pa.int64()})
        batches = (
            pa.record_batch([pa.FixedSizeListArray.from_arrays(x.reshape(-1), WIDTH), pa.array(k)], schema=schema)
            for x, k in pieces(rows)
        )
        lance.write_dataset(pa.RecordBatchReader.from_batches(schema, batches), str(folder))

    def open(self, endpoint: str, path: str, cache: str) -> None:
        import lance

        key, secret = KEYS
        options = {"aws_access_key_id": key, "aws_secret_access_key": secret, "aws_region": "us-east-1"}
        place = {"aws_endpoint": endpoint, "allow_http": "true", "virtual_hosted_style_request": "false"}
        self.dataset = lance.dataset(f"s3://{BUCKET}/{path}", storage_options=options | place)

    def read(self, rows: np.ndarray) -> Any:
        return self.dataset.take(rows)["k"].to_numpy()


def import_streaming() -> Any:
    """MosaicML Streaming. Its datasets of images, which are not used here, import torchvision: empty modules do."""
    if "torchvision" not in sys.modules and not importlib.util.find_spec("torchvision"):
        import transformers  # noqa: F401  # asks whether torchvision is there, so it comes before

        given = {"": [], ".datasets": ["VisionDataset", "CIFAR10"], ".transforms": []}
        for name, inner in {**given, ".transforms.functional": ["to_tensor"]}.items():
            sys.modules[f"torchvision{name}"] = module = ModuleType(f"torchvision{name}")
            for one in inner:
                setattr(module, one, object)
    import streaming

    return streaming


class Mosaic(Reader):
    """MosaicML Streaming: `StreamingDataset[i]`, which downloads the shard of a sample (64 MiB by default)."""

    def load(self) -> None:
        import_streaming()

    def build(self, folder: Path, rows: int) -> None:
        MDSWriter = import_streaming().MDSWriter

        with MDSWriter(out=str(folder), columns={"x": f"ndarray:uint8:{WIDTH}", "k": "int"}) as out:
            for x, numbers in pieces(rows):
                for k, number in enumerate(numbers.tolist()):
                    out.write({"x": x[k], "k": number})

    def open(self, endpoint: str, path: str, cache: str) -> None:
        StreamingDataset = import_streaming().StreamingDataset

        key, secret = KEYS
        os.environ |= {"S3_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret}
        os.environ["AWS_DEFAULT_REGION"] = "us-east-1"
        self.dataset = StreamingDataset(remote=f"s3://{BUCKET}/{path}", local=f"{cache}/mosaic", batch_size=1)

    def read(self, rows: np.ndarray) -> Any:
        return [self.dataset[row]["k"] for row in rows.tolist()]


READERS: dict[str, type[Reader]] = {
    "shardex, `read`": Shardex,
    "shardex, `ds[i]`": Singly,
    "shardex before, `read`": Shardex,
    "raw obstore": Obstore,
    "Lance": Lance,
    "MosaicML Streaming": Mosaic,
}
ALSO = {"shardex, `ds[i]`": "shardex, `read`"}
"""Readers of the files of another one."""


# -- counting -------------------------------------------------------------------------------------------------


class Proxy:
    """Passes connections on to a server and counts requests and the bytes of answers."""

    def __init__(self, port: int) -> None:
        self.requests = self.bytes = 0
        self._server, self._ready = port, threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True).start()
        self._ready.wait()

    async def _run(self) -> None:
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await server.serve_forever()

    async def _connect(self, reader: Any, writer: Any) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server)
        await asyncio.gather(self._requests(reader, to_server), self._answers(from_server, writer))

    async def _requests(self, reader: Any, writer: Any) -> None:
        end, rest = b" HTTP/1.1\r\n", b""
        while data := await reader.read(1 << 16):
            rest += data
            self.requests += rest.count(end)
            rest = rest[-len(end) + 1 :]
            writer.write(data)
            await writer.drain()
        writer.close()

    async def _answers(self, reader: Any, writer: Any) -> None:
        while data := await reader.read(1 << 20):
            self.bytes += len(data)
            writer.write(data)
            await writer.drain()
        writer.close()


# -- measuring ------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, help="instead: so many random rows of 1 KB, beside other readers")
    parser.add_argument("--gib", type=float, default=2, help="size of the dataset of these rows")
    parser.add_argument("--only", default="", help="readers whose name contains this")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has the other readers")
    parser.add_argument("--before", help="src of another checkout of shardex, as one more reader")


def command(asked: argparse.Namespace, name: str, *arguments: Any) -> tuple[list[str], dict[str, str]]:
    own = name.startswith("shardex") or name == "raw obstore"
    environment = dict(os.environ, LANCE_LOG="error", PYTHONWARNINGS="ignore")
    if "before" in name:
        environment["PYTHONPATH"] = asked.before
    return [sys.executable if own else asked.peer_python, __file__, name, *map(str, arguments)], environment


def build(asked: argparse.Namespace, name: str, scratch: str, rows: int) -> None:
    """Write the files of a reader, here and in the store."""
    from shardex.sources.object_store import ObjectSource

    folder = Path(scratch) / name
    line, environment = command(asked, name, "build", folder, rows)
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-500:])
    place = ObjectSource(f"s3://{BUCKET}/{address(name)}")
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            place.put(path.relative_to(folder).as_posix(), path.read_bytes())
            path.unlink()


def address(name: str) -> str:
    """The folder of a reader's files in the bucket."""
    return "".join(letter if letter.isalnum() else "-" for letter in ALSO.get(name, name))


def measure(asked: argparse.Namespace, name: str, proxy: Proxy, rows: int, seed: int) -> dict[str, float]:
    """Open and read in a fresh process."""
    with tempfile.TemporaryDirectory() as cache:
        line, environment = command(asked, name, "read", proxy.url, address(name), cache, rows, asked.rows, seed)
        begin = proxy.requests, proxy.bytes
        pipe = subprocess.PIPE
        with subprocess.Popen(line, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
            assert child.stdin is not None and child.stdout is not None and child.stderr is not None
            if not (said := child.stdout.readline()):
                raise RuntimeError(child.stderr.read().strip()[-500:])
            opened = proxy.requests, proxy.bytes
            child.stdin.write("go\n")
            child.stdin.flush()
            if not (again := child.stdout.readline()):
                raise RuntimeError(child.stderr.read().strip()[-500:])
            read = proxy.requests, proxy.bytes
            child.communicate("\n")
    return {
        "open requests": opened[0] - begin[0],
        "open bytes": opened[1] - begin[1],
        "open": json.loads(said),
        "requests": read[0] - opened[0],
        "bytes": read[1] - opened[1],
        "seconds": json.loads(again),
    }


def compare(asked: argparse.Namespace) -> None:
    """Print the table."""
    from remote import seaweed_port

    rows = int(asked.gib * (1 << 30) / WIDTH)
    with seaweed_port() as port, tempfile.TemporaryDirectory() as scratch:
        proxy, found = Proxy(port), dict[str, list[dict[str, float]]]()
        for name in READERS:
            if ("before" in name and not asked.before) or asked.only not in name:
                continue
            try:
                if name not in ALSO:
                    build(asked, name, scratch, rows)
                found[name] = [measure(asked, name, proxy, rows, seed) for seed in range(asked.repetitions)]
            except RuntimeError as error:
                print(f"{name} is left out: {error}", file=sys.stderr)
    print(f"\n### {asked.rows} random rows of {rows:,}, {WIDTH} B each, from S3\n")
    print("| | open: requests | kB | ms | rows: requests | MB | ms |\n|---|---|---|---|---|---|---|")
    for name, runs in found.items():
        middle = {what: statistics.median(run[what] for run in runs) for what in runs[0]}
        opened = [f"{middle['open requests']:,.0f}", f"{middle['open bytes'] / 1e3:,.1f}"]
        taken = f"{middle['open'] * 1e3:,.0f}"
        read = [f"{middle['requests']:,.0f}", f"{middle['bytes'] / 1e6:,.1f}", f"{middle['seconds'] * 1e3:,.0f}"]
        print(f"| {' | '.join([name, *opened, taken, *read])} |")


# -- in a process of a reader ---------------------------------------------------------------------------------


def main(name: str, step: str, *more: str) -> None:
    reader = READERS[name]()
    if step == "build":
        reader.build(Path(more[0]), int(more[1]))
        return
    endpoint, path, cache = more[:3]
    rows, count, seed = map(int, more[3:])
    wanted = np.random.default_rng(100 + seed).choice(rows, count, replace=False)
    reader.load()
    begin = time.perf_counter()
    reader.open(endpoint, path, cache)
    print(json.dumps(time.perf_counter() - begin), flush=True)
    input()
    begin = time.perf_counter()
    found = reader.read(wanted)
    seconds = time.perf_counter() - begin
    assert np.array_equal(found, wanted), "wrong rows"
    print(json.dumps(seconds), flush=True)
    input()
    os._exit(0)  # some readers wait for threads of theirs


if __name__ == "__main__":
    main(*sys.argv[1:])
