"""The main job from end to end, on data made here: write four kinds of shards, open and read them all in one way.

`run` makes time series, images, a text corpus and a token file, and for each of them reads single samples, random
batches, a shuffled epoch, the same epoch stopped half-way on two ranks and finished by one, and a pass in order. What
comes back is compared with what was made; a difference is an
error. It needs nothing but numpy and some megabytes of disk; `shardex demo` prints what `report` makes of it.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import chain, islice
from typing import Any

import numpy as np

from shardex.dataset import Dataset, create
from shardex.dataset import open as open_dataset
from shardex.errors import AlreadyExistsError, FormatError
from shardex.formats import ShardRows
from shardex.loader import Loader
from shardex.progress import Bar
from shardex.samples import Batch, DictSample
from shardex.schema import Array, ClassLabel

__all__ = ["Row", "report", "run"]

_GETS = 2_000
_BATCHES = 100
_BATCH = 256
_WINDOW = 512
_PIXELS = 32
_SHAPES = ("disc", "square", "stripes", "cross")
_STATIONS = ("Bergen", "Cork", "Genoa", "Kiruna", "Lisbon", "Nantes", "Riga", "Split", "Turku", "Varna")
_NOUNS = ("rain", "wind", "ice", "sun", "tide", "storm", "harbour", "river", "island", "coast", "mountain", "spring")
_VERBS = ("moves", "covers", "follows", "crosses", "meets", "leaves", "reaches", "slows", "turns", "returns")
_WORDS = (*_NOUNS, *_VERBS, "the", "a", "every", "no", "early", "again", "north", "south", "at night", "in spring")


@dataclass(frozen=True)
class Row:
    """What was measured of one dataset. Speeds are samples per second."""

    dataset: str
    format: str
    shards: int
    samples: int
    megabytes: float
    write: int
    open_ms: float
    """The first open, which builds the index where the format needs one."""
    get: int
    batch: int
    """Batches of 256 random positions."""
    shuffled: int
    ordered: int
    checked: int
    """How many samples were compared with what was made."""


@dataclass(frozen=True)
class _Kind:
    """A dataset to be made: how it is written, and a field that tells its samples apart."""

    name: str
    format: str
    schema: Mapping[str, Any]
    make: Callable[[int], list[dict[str, Any]]]
    share: int
    """It has one sample where the largest dataset has this many."""
    mark: str
    options: Mapping[str, Any]
    indexed: bool = False
    """Opening it shows a bar of its own, unless it is told not to."""


def run(folder: str | os.PathLike[str], samples: int = 50_000, progress: bool | None = None) -> list[Row]:
    """Write, read and check every kind of dataset below an empty or new folder.

    >>> import tempfile
    >>> [row.format for row in run(tempfile.mkdtemp(), samples=100, progress=False)]
    ['arrow', 'tar', 'jsonl', 'tokens']
    """
    if os.path.exists(folder) and (not os.path.isdir(folder) or os.listdir(folder)):
        raise AlreadyExistsError(errno.EEXIST, "expected a new or empty folder for the demo", os.fspath(folder))
    steps = len(_KINDS) * len(_STEPS)
    with Bar(total=steps, desc="demo", leave=False, disable=None if progress is None else not progress) as bar:
        return [_try(kind, os.path.join(folder, kind.name), max(1, samples // kind.share), bar) for kind in _KINDS]


def report(rows: Sequence[Row], folder: str | os.PathLike[str] | None) -> str:
    """The rows as a table, with a few words around it."""
    cells = [_HEADS, *(tuple(map(_cell, astuple(row)[: len(_HEADS)])) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(_aligned(cell, width, k) for k, (cell, width) in enumerate(zip(line, widths, strict=True)))
        for line in cells
    ]
    checked = sum(row.checked for row in rows)
    where = "They were written to a temporary folder, which is gone again; keep them with --folder DIR."
    if folder is not None:
        where = f"They lie in {folder}: try `shardex head {os.path.join(folder, rows[0].dataset)} -n 1`."
    return "\n".join(
        [
            "Four kinds of shards, all opened by shardex.open and read in the same way, with all their fields.",
            "Speeds are samples per second.",
            "",
            *lines,
            "",
            f"Checked: {checked:,} reads gave what was made; every shuffled epoch had each sample once, and was the",
            "same when two ranks took its first half, stopped, and one went on with the rest from their saved state.",
            where,
        ]
    )


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def _aligned(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column < 2 else cell.rjust(width)


_HEADS = ("dataset", "format", "shards", "samples", "MB", "write", "open ms", "get", "batch", "shuffled", "ordered")


# -- one dataset ------------------------------------------------------------------------------------------------

_STEPS = ("make", "write", "open", "get", "batch", "shuffle", "stop and go on", "read in order", "check")


def _try(kind: _Kind, path: str, count: int, bar: Any) -> Row:
    """Every step on one dataset."""
    timed = _Steps(kind.name, bar)
    made = timed("make", lambda: kind.make(count))
    timed("write", lambda: _write(kind, path, made))
    quiet: dict[str, Any] = {"progress": False} if kind.indexed else {}
    ds = timed("open", lambda: open_dataset(path, **quiet))
    random = np.random.default_rng(0)
    ones, many = random.integers(0, count, _GETS), random.integers(0, count, (_BATCHES, _BATCH))
    single = timed("get", lambda: [ds[k] for k in ones.tolist()])
    batches = timed("batch", lambda: [Batch(ds.read(positions)) for positions in many])
    shuffled = timed("shuffle", lambda: _marks(Loader(ds, _BATCH, shuffle=True, seed=1), kind))
    resumed = timed("stop and go on", lambda: _stopped(ds, kind))
    ordered = timed("read in order", lambda: [_first(batch[kind.mark]) for batch in ds.ordered(_BATCH)])

    def check() -> int:
        marks = [_first([sample[kind.mark]])[0] for sample in made]
        _check_pass(kind, list(chain(*ordered)), marks, "in order")
        _check_pass(kind, sorted(shuffled), sorted(marks), "shuffled")
        _check_pass(kind, resumed, shuffled, "that stopped and went on")
        checked = _check(kind, made, ones, single)
        return checked + _check(kind, made, many[0], batches[0])

    checked = timed("check", check)
    return _row(kind, ds, timed.seconds, checked)


def _marks(batches: Iterable[Any], kind: _Kind) -> list[Any]:
    """What tells the samples apart, in the order in which they come."""
    return list(chain.from_iterable(_first(batch[kind.mark]) for batch in batches))


def _stopped(ds: Dataset, kind: _Kind) -> list[Any]:
    """The shuffled epoch again: two ranks take the first half of its batches, one loader the rest from their state."""
    ranks = [Loader(ds, _BATCH // 2, shuffle=True, seed=1, rank=rank, world_size=2) for rank in range(2)]
    half = islice(zip(*ranks, strict=True), len(ranks[0]) // 2)
    taken = _marks(chain.from_iterable(half), kind)
    rest = Loader(ds, 100, shuffle=True, seed=1)
    rest.load_state_dict(json.loads(json.dumps(ranks[1].state_dict())))
    return taken + _marks(rest, kind)


class _Steps:
    """Runs steps, shows them and notes how long each took."""

    def __init__(self, name: str, bar: Any) -> None:
        self.name, self.bar = name, bar
        self.seconds: dict[str, float] = {}

    def __call__(self, step: str, job: Callable[[], Any]) -> Any:
        self.bar.set_description(f"{self.name}: {step}")
        start = time.perf_counter()
        result = job()
        self.seconds[step] = time.perf_counter() - start
        self.bar.update()
        return result


def _write(kind: _Kind, path: str, made: list[dict[str, Any]]) -> None:
    with create(path, kind.schema, format=kind.format, **kind.options) as out:
        out.extend(made)


def _first(column: Any) -> list[Any]:
    """One plain value per sample: the first of an array, else the value itself."""
    if isinstance(column, list) and not isinstance(column[0], np.ndarray):
        return column
    array = np.asarray(column)
    return list(array.reshape(len(array), -1)[:, 0].tolist())


def _row(kind: _Kind, ds: Dataset, seconds: Mapping[str, float], checked: int) -> Row:
    rows = ds.rows
    assert isinstance(rows, ShardRows)
    shards = rows.shard_names()
    count = len(ds)
    return Row(
        dataset=kind.name,
        format=rows.opened.format,
        shards=len(shards),
        samples=count,
        megabytes=round(sum(map(os.path.getsize, shards)) / 1e6, 1),
        write=round(count / seconds["write"]),
        open_ms=round(seconds["open"] * 1e3, 1),
        get=round(_GETS / seconds["get"]),
        batch=round(_BATCHES * _BATCH / seconds["batch"]),
        shuffled=round(count / seconds["shuffle"]),
        ordered=round(count / seconds["read in order"]),
        checked=checked,
    )


# -- checks -----------------------------------------------------------------------------------------------------


def _check(kind: _Kind, made: list[dict[str, Any]], positions: Any, found: Sequence[DictSample] | Batch) -> int:
    for position, sample in zip(positions.tolist(), found, strict=True):
        wanted = DictSample(made[position])
        if wanted != {name: sample[name] for name in wanted}:
            raise FormatError(f"expected {wanted}, got {sample} - at {kind.name}, sample {position}")
    return len(found)


def _check_pass(kind: _Kind, found: list[Any], wanted: list[Any], how: str) -> None:
    if found != wanted:
        raise FormatError(f"expected every sample of {kind.name} once in a pass {how}, got something else")


# -- the data ---------------------------------------------------------------------------------------------------


def _series(count: int) -> list[dict[str, Any]]:
    """Temperatures with a daily rhythm: 100 hours to learn from, 50 to predict."""
    random = np.random.default_rng(1)
    hours = np.arange(150, dtype=np.float32)[None] + random.integers(0, 24, (count, 1))
    mean, swing = random.normal(9, 7, (count, 1)), random.uniform(2, 8, (count, 1))
    values = (mean + swing * np.sin(hours * (2 * np.pi / 24)) + random.normal(0, 0.6, hours.shape)).astype(np.float32)
    stations = random.integers(0, len(_STATIONS), count).tolist()
    heights = random.integers(0, 900, count).tolist()
    return [
        {
            "history": row[:100],
            "target": row[100:],
            "station": _STATIONS[station],
            "metadata": {"height": height, "unit": "celsius", "sensor": f"s{k % 97}"},
        }
        for k, (row, station, height) in enumerate(zip(values, stations, heights, strict=True))
    ]


def _images(count: int) -> list[dict[str, Any]]:
    """Small PNG files, each with one of four shapes somewhere in it."""
    random = np.random.default_rng(2)
    y, x = np.mgrid[:_PIXELS, :_PIXELS]
    samples = []
    for label, dx, dy in zip(*(random.integers(0, n, count).tolist() for n in (len(_SHAPES), 9, 9)), strict=True):
        u, v = x - 11 - dx, y - 11 - dy
        mask = (u * u + v * v < 60, np.maximum(abs(u), abs(v)) < 7, (u + v) % 8 < 4, np.minimum(abs(u), abs(v)) < 3)[
            label
        ]
        paper, ink = random.integers(150, 256, 3, np.uint8), random.integers(0, 110, 3, np.uint8)
        samples.append({"png": _png(np.where(mask[..., None], ink, paper)), "cls": label})
    return samples


def _png(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    """An RGB image as a PNG file."""
    height, width, _ = pixels.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes(), 1)), (b"IEND", b""))
    packed = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def _corpus(count: int) -> list[dict[str, Any]]:
    """Lines of text that read like the weather report of a dream."""
    random = np.random.default_rng(3)
    words = np.array(_WORDS)
    scores = random.random(count).round(4).tolist()
    lengths = random.integers(20, 60, count)
    texts = np.split(words[random.integers(0, len(words), int(lengths.sum()))], np.cumsum(lengths)[:-1])
    return [
        {"id": k, "text": " ".join(text), "source": _STATIONS[k % len(_STATIONS)].lower(), "score": score}
        for k, (text, score) in enumerate(zip(texts, scores, strict=True))
    ]


def _tokens(count: int) -> list[dict[str, Any]]:
    """Windows of token numbers, few of them frequent, as in text."""
    random = np.random.default_rng(4)
    numbers = (random.zipf(1.2, count * _WINDOW) % 50_257).astype(np.uint16).reshape(count, _WINDOW)
    return [{"tokens": window} for window in numbers]


_SERIES = {"history": Array("float32", (100,)), "target": Array("float32", (50,)), "station": str, "metadata": dict}
_IMAGES = {"png": bytes, "cls": ClassLabel(_SHAPES)}
_CORPUS = {"id": int, "text": str, "source": str, "score": float}
_TOKENS = {"tokens": Array("uint16", (_WINDOW,))}
_KINDS = (
    _Kind("series", "arrow", _SERIES, _series, 1, "target", {"shard_rows": 10_000}),
    _Kind("images", "tar", _IMAGES, _images, 25, "png", {"shard_rows": 500}, indexed=True),
    _Kind("corpus", "jsonl", _CORPUS, _corpus, 1, "id", {"shard_rows": 10_000}, indexed=True),
    _Kind("tokens", "tokens", _TOKENS, _tokens, 12, "tokens", {"shard_size": 1 << 20}),
)
