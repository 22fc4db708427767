"""shardex as the side-by-side harness measures it: one dataset per workload, in the format its data asks for.

`Shardex` is the library with its defaults; `Sharded` is the same with the series cut into 256 shards, `Passes` with
epochs by `Dataset.shuffled` instead of the loader, `Converted` with the JSON lines converted to a native dataset, as
peers convert them when they build. The harness puts its own folder on `sys.path`, from which `adapters.base` comes.

Images are stored as `sx.Image`. Everything but `loader_dec` reads the stored bytes, as the harness compares them with
the source. For `loader_dec` it asks for batches to which its decoder was applied, and gets those that the library has
decoded: the same pixels. For `epoch_dec` it decodes the batches of `epoch` itself, in one thread, whatever the library
can do; `benchmarks/images.py` measures epochs that the library decodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import workloads as W
from adapters.base import Adapter, owned

SCHEMAS: dict[str, dict[str, Any]] = {
    "series": {"history": ("float32", (100,)), "target": ("float32", (50,)), "length": "int32", "source": str},
    "ragged": {"tokens": ("int32", (None,))},
    "images": {"image": None, "label": "int32"},
    "jsonl": {"id": int, "text": str, "source": str, "score": float},
    "tokens": {"tokens": ("uint16", (W.WINDOW,))},
}


class Shardex(Adapter):
    config = (
        "sx.create with a schema (Arrow shards, checksums, synced); jsonl: sx.open of the .jsonl as it is, index built"
    )
    iter_unit = "batch"
    shards: int | None = None

    def build(self, src: Any) -> None:
        import shardex as sx

        if self.w == "jsonl":
            path = self.dir / "data.jsonl"
            if src.n == src.total:
                path.symlink_to(src.path)
            else:
                path.write_bytes(src.blob[src.offsets[src.lo] : src.offsets[src.hi]].tobytes())
            sx.open(str(path))
            return
        schema = {name: sx.Array(*kind) if isinstance(kind, tuple) else kind for name, kind in SCHEMAS[self.w].items()}
        if self.w == "images":
            schema["image"] = sx.Image()
        options = {} if self.shards is None else {"shard_rows": -(-src.n // self.shards)}
        with sx.create(self.dir, schema, **options) as out:
            out.extend(src)

    def index_bytes(self) -> int | None:
        where = self.dir / (".shardex" if self.w == "jsonl" else "_shardex")
        return sum(path.stat().st_size for path in where.glob("*"))

    def open(self) -> None:
        import shardex as sx

        self.decoded = sx.open(str(self.dir / "data.jsonl") if self.w == "jsonl" else str(self.dir))
        self.ds = self.decoded.stored

    def __len__(self) -> int:
        return len(self.ds)

    def get(self, i: int) -> Any:
        return self.ds[i]

    def get_batch(self, idx: np.ndarray) -> Any:
        columns = self.ds.read(idx).data
        if self.w == "ragged":
            tokens = columns["tokens"]
            return {"tokens": (tokens.values, tokens.offsets)}
        return columns

    def collate(self, batch: Any) -> Any:
        if self.w == "ragged" and isinstance(batch["tokens"], tuple):
            return W.pad_flat(*batch["tokens"])
        return batch

    def iterate(self) -> Any:
        for batch in self.ds.ordered(
            64 if self.w == "images" else 1024
        ):  # about 2 MB, which the processor's cache holds
            if self.w == "ragged":
                tokens = batch.tokens
                yield len(batch), {"tokens": (tokens.values, tokens.offsets)}
            else:
                yield len(batch), batch.columns.data

    def epoch(self, seed: int, batch: int) -> Any:
        import shardex as sx

        for part in sx.Loader(self.ds, batch, shuffle=True, seed=seed):
            yield collated(self.w, part)

    def loader(self, seed: int, batch: int, workers: int, post: Any = None) -> Any:
        import shardex as sx

        data = self.ds if post is None else self.decoded
        options = {"workers": workers, "worker_type": "process", "to": "torch"}
        with sx.Loader(data, batch, shuffle=True, seed=seed, **options) as loader:
            for part in loader:
                yield collated(self.w, part)

    def add_field(self, name: str, values: np.ndarray) -> None:
        import shardex as sx

        with sx.edit(self.dir, progress=False) as tx:
            if name in tx.dataset.fields:  # from the repetition before
                tx.drop_field(name)
            tx.add_field(name, "float32", values)


def collated(workload: str, batch: Any) -> Any:
    """A batch as the harness wants it."""
    columns = dict(batch.columns.data)
    if workload == "ragged":
        columns["lengths"] = batch.lengths_of("tokens")
    return columns


class Passes(Shardex):
    config = "the same, its epochs by Dataset.shuffled"

    def epoch(self, seed: int, batch: int) -> Any:
        for part in self.ds.shuffled(batch, seed=seed):
            if self.w == "ragged":
                yield {"tokens": part.tokens.pad(), "lengths": part.tokens.lengths}
            else:
                yield part.columns.data


class Converted(Shardex):
    config = "the same; jsonl: converted to a native dataset, once, by sx.write(path, sx.open(lines))"

    def build(self, src: Any) -> None:
        import shardex as sx

        super().build(src)
        if self.w == "jsonl":
            sx.write(self.dir / "native", sx.open(str(self.dir / "data.jsonl")), progress=False)

    def open(self) -> None:
        import shardex as sx

        super().open()
        if self.w == "jsonl":
            self.decoded = self.ds = sx.open(str(self.dir / "native"))


class Sharded(Shardex):
    config = "the same, cut into 256 shards"
    shards = 256


__all__ = ["Converted", "Passes", "Sharded", "Shardex", "owned"]
