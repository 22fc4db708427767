"""shardex and a few peers behind one small interface, each used the way its own documentation shows.

`limit` is no library: flat files, one per field, mapped and indexed with numpy, which is about what the machine allows.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from data import SOURCES, Source

Batch = dict[str, Any]


class Peer:
    """Build, open, and read one workload in one folder."""

    def __init__(self, workload: str, folder: Path) -> None:
        self.workload, self.folder = workload, folder

    def build(self, source: Source) -> None:
        raise NotImplementedError

    def open(self) -> None:
        raise NotImplementedError

    def get(self, k: int) -> Any:
        raise NotImplementedError

    def batch(self, rows: np.ndarray) -> Any:
        raise NotImplementedError

    def epoch(self, seed: int, size: int) -> Iterator[Batch]:
        """Shuffled batches, collated (ragged ones padded)."""
        order = np.random.default_rng(seed).permutation(self.count)
        for start in range(0, self.count, size):
            yield self.collated(self.batch(order[start : start + size]))

    def collated(self, batch: Any) -> Batch:
        return batch  # type: ignore[no-any-return]

    def sequential(self) -> Iterator[Any]:
        for start in range(0, self.count, 1024):
            yield self.batch(np.arange(start, min(start + 1024, self.count)))

    count: int


class Shardex(Peer):
    """The library with its defaults."""

    def build(self, source: Source) -> None:
        import shardex as sx

        schemas: dict[str, Any] = {
            "series": {
                "history": sx.Array("float32", (100,)),
                "target": sx.Array("float32", (50,)),
                "length": "int32",
                "source": str,
            },
            "tokens": {"tokens": sx.Array("uint16", (1024,))},
            "ragged": {"tokens": sx.Array("int32", (None,))},
        }
        sx.write(self.folder, source, schemas[self.workload], progress=False)

    def open(self) -> None:
        import shardex as sx

        self.dataset = sx.open(self.folder)
        self.count = len(self.dataset)

    def get(self, k: int) -> Any:
        return self.dataset[k]

    def batch(self, rows: np.ndarray) -> Any:
        columns = self.dataset.read(rows)
        return columns["tokens"].values if self.workload == "ragged" else columns.data  # type: ignore[union-attr]

    def epoch(self, seed: int, size: int) -> Iterator[Batch]:
        for batch in self.dataset.shuffled(size, seed=seed):
            yield {"tokens": batch.tokens.pad()} if self.workload == "ragged" else batch.columns.data

    def sequential(self) -> Iterator[Any]:
        for batch in self.dataset.ordered(1024):
            yield batch.tokens.values if self.workload == "ragged" else batch.columns.data


class Limit(Peer):
    """Flat files and numpy: no library, no checks."""

    def build(self, source: Source) -> None:
        fields: dict[str, list[Any]] = {}
        for sample in source:
            for name, value in sample.items():
                fields.setdefault(name, []).append(value)
        self.folder.mkdir(parents=True)
        for name, values in fields.items():
            column = (
                np.array([SOURCES.index(v) for v in values])
                if name == "source"
                else np.array(values)
                if name == "length"
                else None
            )
            np.save(self.folder / f"{name}.npy", np.concatenate(values) if column is None else column)
        if self.workload == "ragged":
            np.save(self.folder / "offsets.npy", np.cumsum([0, *map(len, fields["tokens"])]))

    def open(self) -> None:
        load = {p.stem: np.load(p, mmap_mode="r").view(np.ndarray) for p in self.folder.glob("*.npy")}
        if self.workload == "ragged":
            self.values, self.offsets = load["tokens"], load["offsets"]
            self.count = len(self.offsets) - 1
        else:
            widths = {"history": 100, "target": 50, "tokens": 1024}
            self.columns = {n: c.reshape(-1, widths[n]) if n in widths else c for n, c in load.items()}
            self.count = len(next(iter(self.columns.values())))

    def get(self, k: int) -> Any:
        if self.workload == "ragged":
            return {"tokens": self.values[self.offsets[k] : self.offsets[k + 1]].copy()}
        return {name: SOURCES[c[k]] if name == "source" else c[k].copy() for name, c in self.columns.items()}

    def batch(self, rows: np.ndarray) -> Any:
        if self.workload == "ragged":
            return [
                self.values[a:b]
                for a, b in zip(self.offsets[rows].tolist(), self.offsets[rows + 1].tolist(), strict=True)
            ]
        return {
            n: [SOURCES[s] for s in c[rows].tolist()] if n == "source" else c.take(rows, 0)
            for n, c in self.columns.items()
        }

    def collated(self, batch: Any) -> Batch:
        return {"tokens": padded(batch)} if self.workload == "ragged" else batch

    def sequential(self) -> Iterator[Any]:
        if self.workload != "ragged":
            yield from super().sequential()
            return
        for start in range(0, self.count, 1024):
            yield self.values[self.offsets[start] : self.offsets[min(start + 1024, self.count)]].copy()


def padded(arrays: list[np.ndarray]) -> np.ndarray:
    out = np.zeros((len(arrays), max(map(len, arrays))), np.int32)
    for k, array in enumerate(arrays):
        out[k, : len(array)] = array
    return out


class Samples(Peer):
    """Peers that hand out samples one by one: batches are stacked by the caller."""

    def batch(self, rows: np.ndarray) -> Any:
        return [self.get(k) for k in rows.tolist()]

    def collated(self, batch: Any) -> Batch:
        if self.workload == "ragged":
            return {"tokens": padded([sample["tokens"] for sample in batch])}
        return {n: [s[n] for s in batch] if n == "source" else np.stack([s[n] for s in batch]) for n in batch[0]}


class Lmdb(Samples):
    """LMDB, records as pickles of plain bytes and numbers."""

    def build(self, source: Source) -> None:
        import lmdb

        self.folder.mkdir(parents=True)
        env = lmdb.open(str(self.folder), map_size=1 << 34, sync=False)
        with env.begin(write=True) as txn:
            for k, sample in enumerate(source):
                record = pickle.dumps({n: v.tobytes() if isinstance(v, np.ndarray) else v for n, v in sample.items()})
                txn.put(k.to_bytes(8, "big"), record, append=True)
        env.sync()
        env.close()

    def open(self) -> None:
        import lmdb

        self.env = lmdb.open(str(self.folder), readonly=True, lock=False, readahead=False)
        self.txn = self.env.begin()
        self.count = self.env.stat()["entries"]
        self.kinds = {"tokens": np.uint16 if self.workload == "tokens" else np.int32}

    def get(self, k: int) -> Any:
        record = pickle.loads(self.txn.get(k.to_bytes(8, "big")))
        return {
            n: np.frombuffer(v, self.kinds.get(n, np.float32)) if type(v) is bytes else v for n, v in record.items()
        }


class H5(Peer):
    """HDF5 through h5py, written in blocks of 1024 rows."""

    def build(self, source: Source) -> None:
        import h5py

        if self.workload == "ragged":
            raise NotImplementedError("h5py's variable length arrays are left out")
        self.folder.mkdir(parents=True)
        with h5py.File(self.folder / "data.h5", "w") as file:
            rows: list[dict[str, Any]] = []
            for k, sample in enumerate(source):
                rows.append(sample)
                if len(rows) == 1024 or k + 1 == len(source):
                    self._write(file, rows, k + 1)
                    rows = []

    def _write(self, file: Any, rows: list[dict[str, Any]], end: int) -> None:
        for name in rows[0]:
            values = np.array([SOURCES.index(r[name]) if name == "source" else r[name] for r in rows])
            if name not in file:
                file.create_dataset(name, (0, *values.shape[1:]), values.dtype, maxshape=(None, *values.shape[1:]))
            file[name].resize(end, axis=0)
            file[name][end - len(rows) :] = values

    def open(self) -> None:
        import h5py

        self.file = h5py.File(self.folder / "data.h5", "r")
        self.count = len(next(iter(self.file.values())))

    def get(self, k: int) -> Any:
        return {name: SOURCES[c[k]] if name == "source" else c[k] for name, c in self.file.items()}

    def batch(self, rows: np.ndarray) -> Any:
        order, back = np.unique(rows, return_inverse=True)
        found = {name: column[order][back] for name, column in self.file.items()}
        return {n: [SOURCES[s] for s in c.tolist()] if n == "source" else c for n, c in found.items()}

    def sequential(self) -> Iterator[Any]:
        for start in range(0, self.count, 1024):
            yield {name: column[start : start + 1024] for name, column in self.file.items()}


class HuggingFace(Peer):
    """Hugging Face datasets, numpy format."""

    def build(self, source: Source) -> None:
        import datasets

        datasets.disable_progress_bars()
        number, several = datasets.Value, datasets.Sequence
        kinds = {
            "series": {
                "history": several(number("float32"), 100),
                "target": several(number("float32"), 50),
                "length": number("int32"),
                "source": number("string"),
            },
            "tokens": {"tokens": several(number("uint16"), 1024)},
            "ragged": {"tokens": several(number("int32"))},
        }
        made = datasets.Dataset.from_generator(
            source.__iter__,
            features=datasets.Features(kinds[self.workload]),
            cache_dir=str(self.folder.with_suffix(".cache")),
        )
        made.save_to_disk(str(self.folder))

    def open(self) -> None:
        import datasets

        self.dataset = datasets.load_from_disk(str(self.folder)).with_format("numpy")
        self.count = len(self.dataset)

    def get(self, k: int) -> Any:
        return self.dataset[k]

    def batch(self, rows: np.ndarray) -> Any:
        return self.dataset[rows]

    def collated(self, batch: Any) -> Batch:
        return {"tokens": padded(list(batch["tokens"]))} if self.workload == "ragged" else batch


PEERS: dict[str, type[Peer]] = {
    "shardex": Shardex,
    "lmdb": Lmdb,
    "h5py": H5,
    "hf-datasets": HuggingFace,
    "limit": Limit,
}
