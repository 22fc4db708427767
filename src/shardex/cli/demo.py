"""The script of `shardex demo`: write generated datasets in four formats, read them in every way, check and measure.

`run` generates time series, images, a text corpus and token windows. From each dataset it reads single samples, random
batches, a shuffled epoch, the same epoch stopped half-way on two ranks and resumed on one, and an epoch in order. The
samples are compared with the generated ones; a difference is an error. `report` makes a table of the measurements.
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
from shardex.features import Array, ClassLabel
from shardex.formats import ShardRows
from shardex.loader import Loader
from shardex.progress import Bar
from shardex.samples import Batch, DictSample

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
    """Measurements of one dataset. Speeds are samples per second."""

    dataset: str
    format: str
    shards: int
    samples: int
    megabytes: float
    write: int
    open_ms: float
    """Time of the first open, which builds the index if the format needs one."""
    get: int
    batch: int
    """Batches of 256 random positions."""
    shuffled: int
    ordered: int
    checked: int
    """Number of samples that were compared with the generated ones."""


@dataclass(frozen=True)
class _Kind:
    """A dataset to generate: its format and schema, and a field whose values identify the samples."""

    name: str
    format: str
    schema: Mapping[str, Any]
    generate: Callable[[int], list[dict[str, Any]]]
    share: int
    """The largest dataset has this many samples for each sample of this one."""
    key: str
    """Field that identifies a sample."""
    options: Mapping[str, Any]
    indexed: bool = False
    """True if opening it shows a progress bar by default."""


def run(folder: str | os.PathLike[str], samples: int = 50_000, progress: bool | None = None) -> list[Row]:
    """Write, read and check a dataset of each kind in a new or empty folder.

    >>> import tempfile
    >>> [row.format for row in run(tempfile.mkdtemp(), samples=100, progress=False)]
    ['arrow', 'tar', 'jsonl', 'tokens']
    """
    if os.path.exists(folder) and (not os.path.isdir(folder) or os.listdir(folder)):
        raise AlreadyExistsError(errno.EEXIST, "expected a new or empty folder for the demo", os.fspath(folder))
    steps = len(_KINDS) * len(_STEPS)
    with Bar(total=steps, desc="demo", leave=False, disable=None if progress is None else not progress) as bar:
        return [_measure(kind, os.path.join(folder, kind.name), max(1, samples // kind.share), bar) for kind in _KINDS]


def report(rows: Sequence[Row], folder: str | os.PathLike[str] | None) -> str:
    """Return the rows as a table, with an explanation."""
    cells = [_HEADS, *(tuple(map(_cell, astuple(row)[: len(_HEADS)])) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(_aligned(cell, width, k) for k, (cell, width) in enumerate(zip(line, widths, strict=True)))
        for line in cells
    ]
    checked = sum(row.checked for row in rows)
    where = "The data was in a temporary folder and is deleted again; use --folder DIR to keep it."
    if folder is not None:
        where = f"The data is in {folder}: try `shardex head {os.path.join(folder, rows[0].dataset)} -n 1`."
    return "\n".join(
        [
            "Four datasets in four formats, all opened with shardex.open and read in the same way.",
            "Speeds are samples per second, with all fields read.",
            "",
            *lines,
            "",
            f"Checked: {checked:,} samples came back unchanged. Every shuffled epoch had each sample exactly once,",
            "and the same order when two ranks read its first half and one process resumed from their saved state.",
            where,
        ]
    )


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def _aligned(cell: str, width: int, column: int) -> str:
    return cell.ljust(width) if column < 2 else cell.rjust(width)


_HEADS = ("dataset", "format", "shards", "samples", "MB", "write", "open ms", "get", "batch", "shuffled", "ordered")


# -- one dataset ------------------------------------------------------------------------------------------------

_STEPS = ("generate", "write", "open", "get", "batch", "shuffle", "resume", "read in order", "check")


def _measure(kind: _Kind, path: str, count: int, bar: Any) -> Row:
    """Run every step on one dataset."""
    step = _StepTimer(kind.name, bar)
    samples = step("generate", lambda: kind.generate(count))
    step("write", lambda: _write(kind, path, samples))
    options: dict[str, Any] = {"progress": False} if kind.indexed else {}
    if kind.name == "images":
        options["schema"] = kind.schema  # bytes: decoding them needs other packages
    ds = step("open", lambda: open_dataset(path, **options))
    random = np.random.default_rng(0)
    singles, batch_positions = random.integers(0, count, _GETS), random.integers(0, count, (_BATCHES, _BATCH))
    single = step("get", lambda: [ds[k] for k in singles.tolist()])
    batches = step("batch", lambda: [Batch(ds.read(positions)) for positions in batch_positions])
    shuffled = step("shuffle", lambda: _keys(Loader(ds, _BATCH, shuffle=True, seed=1), kind))
    resumed = step("resume", lambda: _resumed_epoch(ds, kind))
    ordered = step("read in order", lambda: [_first(batch[kind.key]) for batch in ds.ordered(_BATCH)])

    def check() -> int:
        keys = [_first([sample[kind.key]])[0] for sample in samples]
        _check_epoch(kind, list(chain(*ordered)), keys, "in order")
        _check_epoch(kind, sorted(shuffled), sorted(keys), "shuffled")
        _check_epoch(kind, resumed, shuffled, "with a resume")
        checked = _check(kind, samples, singles, single)
        return checked + _check(kind, samples, batch_positions[0], batches[0])

    checked = step("check", check)
    return _row(kind, ds, step.seconds, checked)


def _keys(batches: Iterable[Any], kind: _Kind) -> list[Any]:
    """Keys of the samples, in the order of the batches."""
    return list(chain.from_iterable(_first(batch[kind.key]) for batch in batches))


def _resumed_epoch(ds: Dataset, kind: _Kind) -> list[Any]:
    """Keys of the shuffled epoch: two ranks read the first half, one loader resumes from their state."""
    ranks = [Loader(ds, _BATCH // 2, shuffle=True, seed=1, rank=rank, world_size=2) for rank in range(2)]
    half = islice(zip(*ranks, strict=True), len(ranks[0]) // 2)
    taken = _keys(chain.from_iterable(half), kind)
    rest = Loader(ds, 100, shuffle=True, seed=1)
    rest.load_state_dict(json.loads(json.dumps(ranks[1].state_dict())))
    return taken + _keys(rest, kind)


class _StepTimer:
    """Runs steps, shows them in the progress bar and measures how long each takes."""

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


def _write(kind: _Kind, path: str, samples: list[dict[str, Any]]) -> None:
    with create(path, kind.schema, format=kind.format, **kind.options) as out:
        out.extend(samples)


def _first(column: Any) -> list[Any]:
    """Return one value per sample: the first element of an array, or the value itself."""
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


def _check(kind: _Kind, samples: list[dict[str, Any]], positions: Any, found: Sequence[DictSample] | Batch) -> int:
    for position, sample in zip(positions.tolist(), found, strict=True):
        wanted = DictSample(samples[position])
        if wanted != {name: sample[name] for name in wanted}:
            raise FormatError(f"expected {wanted}, got {sample} - at {kind.name}, sample {position}")
    return len(found)


def _check_epoch(kind: _Kind, found: list[Any], wanted: list[Any], how: str) -> None:
    if found != wanted:
        raise FormatError(f"expected every sample of {kind.name} once in an epoch {how}, got something else")


# -- the data ---------------------------------------------------------------------------------------------------


def _series(count: int) -> list[dict[str, Any]]:
    """Temperatures with a daily cycle: 100 hours of history, 50 hours to predict."""
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
    """Small PNG images, each with one of four shapes."""
    random = np.random.default_rng(2)
    y, x = np.mgrid[:_PIXELS, :_PIXELS]
    samples = []
    for label, dx, dy in zip(*(random.integers(0, n, count).tolist() for n in (len(_SHAPES), 9, 9)), strict=True):
        u, v = x - 11 - dx, y - 11 - dy
        mask = (u * u + v * v < 60, np.maximum(abs(u), abs(v)) < 7, (u + v) % 8 < 4, np.minimum(abs(u), abs(v)) < 3)[
            label
        ]
        background, color = random.integers(150, 256, 3, np.uint8), random.integers(0, 110, 3, np.uint8)
        samples.append({"png": _png(np.where(mask[..., None], color, background)), "cls": label})
    return samples


def _png(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    """Return an RGB image as PNG bytes."""
    height, width, _ = pixels.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes(), 1)), (b"IEND", b""))
    packed = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(packed)


def _corpus(count: int) -> list[dict[str, Any]]:
    """Random words about the weather."""
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
    """Windows of token ids with the skewed frequencies of text."""
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
