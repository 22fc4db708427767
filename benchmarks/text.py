"""Text and tokens: indexing lines, tokenising and packing, beside peers and limits, in one run.

    .venv/bin/python benchmarks/text.py --litdata PYTHON      # five minutes on two quiet cores; prints Markdown
    .venv/bin/python benchmarks/text.py --quick               # smaller data, one repetition

Every figure is the best of some repetitions, each a fresh process, imports left out, the repetitions of all
competitors interleaved. Results are read back and compared. All data is in memory (/dev/shm) if there is room.

- *index*: JSON Lines indexed by `shardex.index` on one core and on two, beside ``wc -l`` on one core
- *tokenize*: JSON Lines to token files with a byte-level BPE that is trained here with `tokenizers`. The limit is
  `encode_batch` alone on texts that are in memory already, on all cores, without storing anything. Hugging Face
  `map(batched=True, num_proc=2)` begins with the texts in an Arrow dataset, data-forager and LitData with the file
- *pack*: opening views of documents of 100 million tokens, and shuffled epochs of their batches, beside the plain
  windows of the same files; padding of best-fit packs beside a best-fit-decreasing reference
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

BYTES = {"index": 2 << 30, "tokenize": 100 << 20}
QUICK = {"index": 200 << 20, "tokenize": 8 << 20}
TOKENS, QUICK_TOKENS = 100_000_000, 5_000_000
LENGTH = 1024
VOCABULARY = 32_000
BATCH = 1000
EOS = "<|endoftext|>"
MEMORY = 8 << 30

Seconds = float


# -- data -----------------------------------------------------------------------------------------------------


def write_lines(path: Path, size: int) -> None:
    """Documents of Zipf-distributed made-up words and lognormal lengths; repeated if the file is large."""
    random = np.random.default_rng(1)
    letters = np.frombuffer(b"etaoinshrdlucmfwypvbgkqjxz", np.uint8)
    words = [
        letters[np.minimum(random.zipf(1.4, n) - 1, 25)].tobytes().decode() for n in random.integers(2, 11, 40_000)
    ]
    block: list[bytes] = []
    total = 0
    while total < min(size, 100 << 20):
        count = int(random.lognormal(4.6, 1.0)) + 1
        text = " ".join(words[k] for k in np.minimum(random.zipf(1.2, count) - 1, len(words) - 1))
        block.append(json.dumps({"id": len(block), "text": text.capitalize() + "."}).encode() + b"\n")
        total += len(block[-1])
    data = b"".join(block)
    with path.open("wb") as file:
        for _ in range(-(-size // len(data))):
            file.write(data)


def texts_of(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        for line in file:
            yield json.loads(line)["text"]


def train(path: Path, out: Path) -> None:
    """Train the tokenizer on the first 20 000 documents."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    made.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[EOS], initial_alphabet=alphabet, show_progress=False
    )  # type: ignore[call-arg]
    made.train_from_iterator(itertools.islice(texts_of(path), 20_000), trainer)
    made.save(str(out))


def write_documents(folder: Path, tokens: int) -> None:
    """Documents of lognormal lengths, mean about 300, as token files."""
    import shardex as sx

    random, schema, written = np.random.default_rng(2), {"tokens": sx.Array("uint16", (None,))}, 0
    with sx.create(folder, schema, format="tokens", shard_size=64 << 20) as out:
        while written < tokens:
            length = min(int(random.lognormal(5.2, 1.0)) + 1, tokens - written)
            out.append(tokens=random.integers(0, VOCABULARY, length).astype(np.uint16))
            written += length


# -- jobs: each is run in a fresh process, and returns what is timed --------------------------------------------


def on_cores(count: int) -> None:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def count_lines(folder: Path, out: Path) -> Callable[[], Any]:
    on_cores(1)
    return lambda: subprocess.run(["wc", "-l", folder / "lines.jsonl"], check=True, capture_output=True).stdout[:0]


def index_lines(folder: Path, out: Path, cores: int) -> Callable[[], Any]:
    import shardex as sx

    on_cores(cores)
    out.mkdir()
    (out / "few.jsonl").write_bytes(b'{"text": "a"}\n')
    sx.index(out / "few.jsonl", progress=False)  # imports what it needs
    os.link(folder / "lines.jsonl", out / "lines.jsonl")  # its index is stored next to it
    return lambda: len(sx.index(out / "lines.jsonl", progress=False))


def encode_alone(folder: Path, out: Path) -> Callable[[], Any]:
    from tokenizers import Tokenizer

    made, texts = Tokenizer.from_file(str(folder / "tokenizer.json")), list(texts_of(folder / "lines.jsonl"))

    def run() -> int:
        batches = (texts[begin : begin + BATCH] for begin in range(0, len(texts), BATCH))
        return sum(len(one) for batch in batches for one in made.encode_batch(batch)) + len(texts)

    return run


def tokenize_shardex(folder: Path, out: Path, workers: int | None) -> Callable[[], Any]:
    import shardex as sx

    def run() -> Any:
        made = sx.tokenize(
            folder / "lines.jsonl", folder / "tokenizer.json", out, eos=EOS, workers=workers, progress=False
        )
        return lambda: int(made.lengths("tokens").sum())

    return run


def tokenize_huggingface(folder: Path, out: Path) -> Callable[[], Any]:
    import datasets
    from tokenizers import Tokenizer

    datasets.disable_progress_bars()
    datasets.disable_caching()
    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    eos = made.token_to_id(EOS)
    texts = datasets.Dataset.from_json(str(folder / "lines.jsonl"), cache_dir=f"{out}.cache")

    def encode(batch: Mapping[str, Any]) -> dict[str, Any]:
        return {"tokens": [[*one.ids, eos] for one in made.encode_batch(batch["text"])]}

    def run() -> Any:
        mapped = texts.map(encode, batched=True, num_proc=2, remove_columns=["id", "text"])
        mapped.save_to_disk(str(out))
        return lambda: sum(map(len, mapped["tokens"]))

    return run


def tokenize_data_forager(folder: Path, out: Path) -> Callable[[], Any]:
    from data_forager.indexers.tokenization_indexer import create_tokenize_and_index_jsonl_text_func
    from tokenizers import Tokenizer

    made = Tokenizer.from_file(str(folder / "tokenizer.json"))
    out.mkdir()

    def run() -> Any:
        with contextlib.redirect_stdout(sys.stderr):
            create_tokenize_and_index_jsonl_text_func(
                lambda text: made.encode(text).ids,
                made.token_to_id(EOS),
                input_file_paths=[str(folder / "lines.jsonl")],
                output_base_path=str(out),
                sample_size=LENGTH,
                token_dtype=np.uint16,
            )()
        return lambda: sum(path.stat().st_size for path in out.rglob("*.bin") if "locations" not in path.name) // 2

    return run


def tokenize_litdata(folder: Path, out: Path) -> Callable[[], Any]:
    os.environ |= {"DATA_OPTIMIZER_CACHE_FOLDER": f"{out}.cache", "DATA_OPTIMIZER_DATA_CACHE_FOLDER": f"{out}.data"}
    import litdata

    lines = (folder / "lines.jsonl").read_bytes().splitlines()
    size = -(-len(lines) // 64)
    parts = [f"{out}.in-{k}.jsonl" for k in range(64)]
    for k, part in enumerate(parts):
        Path(part).write_bytes(b"\n".join(lines[k * size : (k + 1) * size]))

    def run() -> Any:
        litdata.optimize(
            LitDataTokens(str(folder / "tokenizer.json")),
            parts,
            str(out),
            chunk_bytes="64MB",
            num_workers=2,
            item_loader=litdata.TokensLoader(),
            verbose=False,
        )
        return lambda: json.loads((out / "index.json").read_text("utf-8"))["chunks"] and None

    return run


class LitDataTokens:
    """Yields the tokens of each document of a file, as the documentation of LitData shows."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, part: str) -> Iterator[Any]:
        import torch
        from tokenizers import Tokenizer

        made = Tokenizer.from_file(self.path)
        eos = made.token_to_id(EOS)
        texts = list(texts_of(Path(part)))
        for begin in range(0, len(texts), BATCH):
            for one in made.encode_batch(texts[begin : begin + BATCH]):
                yield torch.tensor([*one.ids, eos], dtype=torch.uint16)


VIEWS: dict[str, Callable[[Any, Path], Any]] = {
    "plain windows, `open(window=)`": lambda sx, folder: sx.open(folder, window=LENGTH),
    "`windows`": lambda sx, folder: sx.open(folder).windows(LENGTH),
    "`windows`, random offset": lambda sx, folder: sx.open(folder).windows(LENGTH, offset="random per epoch"),
    "`pack`, concat, tokens only": lambda sx, folder: sx.open(folder).pack(LENGTH),
    "`pack`, concat, with segments": lambda sx, folder: sx.open(folder).pack(LENGTH, segments=True),
    "`pack`, best_fit, tokens only": lambda sx, folder: sx.open(folder).pack(LENGTH, "best_fit"),
    "`pack`, best_fit, with segments": lambda sx, folder: sx.open(folder).pack(LENGTH, "best_fit", segments=True),
}


def epoch_of(folder: Path, out: Path, name: str) -> Callable[[], Any]:
    import shardex as sx

    def run() -> Any:
        VIEWS[name](sx, folder / "documents")  # imports what it needs
        start = time.perf_counter()
        view = VIEWS[name](sx, folder / "documents")
        opened = time.perf_counter() - start
        loader = sx.Loader(view, 256, shuffle=True)
        for _ in loader:  # an epoch before the clock starts: files are mapped
            pass
        start, tokens = time.perf_counter(), 0
        for batch in loader:
            tokens += batch.tokens.size
        return {"opened": opened, "seconds": time.perf_counter() - start, "tokens": tokens, "packs": len(view)}

    return run


JOBS: dict[str, Callable[..., Callable[[], Any]]] = {
    "wc -l, 1 core": count_lines,
    "shardex, 1 core": lambda *given: index_lines(*given, 1),
    "shardex, 2 cores": lambda *given: index_lines(*given, 2),
    "limit: encode_batch alone": encode_alone,
    "shardex": lambda *given: tokenize_shardex(*given, None),
    "shardex, 2 workers": lambda *given: tokenize_shardex(*given, 2),
    "HF datasets, num_proc=2": tokenize_huggingface,
    "data-forager": tokenize_data_forager,
    "LitData, num_workers=2": tokenize_litdata,
    **{name: (lambda *given, name=name: epoch_of(*given, name)) for name in VIEWS},
}


# -- measuring ------------------------------------------------------------------------------------------------


def child(name: str, folder: Path, out: Path) -> None:
    """Run one job in this process; print seconds and what it returned."""
    run = JOBS[name](folder, out)
    start = time.perf_counter()
    with contextlib.redirect_stdout(sys.stderr):
        found = run()
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "found": found() if callable(found) else found}, default=str))


def measured(python: str, name: str, folder: Path) -> dict[str, Any] | None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        around = {**os.environ, "TMPDIR": scratch, "HF_DATASETS_CACHE": f"{scratch}/hf", "HF_HUB_OFFLINE": "1"}
        given = [python, __file__, "--child", name, str(folder), f"{scratch}/out"]
        done = subprocess.run(given, capture_output=True, text=True, check=False, env=around)
    if done.returncode:
        print(f"{name} failed:\n{done.stderr[-3000:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def interleaved(pythons: Mapping[str, str], folder: Path, repetitions: int) -> dict[str, list[dict[str, Any]]]:
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name, python in pythons.items() if python}
    for _ in range(repetitions):
        for name, done in taken.items():
            if (not done or done[0]["seconds"] < 60) and (one := measured(pythons[name], name, folder)) is not None:
                done.append(one)
    return {name: done for name, done in taken.items() if done}


def best(done: list[dict[str, Any]]) -> float:
    return float(min(one["seconds"] for one in done))


def measure_index(folder: Path, size: int, repetitions: int) -> None:
    write_lines(folder / "lines.jsonl", size)
    names = ["wc -l, 1 core", "shardex, 1 core", "shardex, 2 cores"]
    taken = interleaved(dict.fromkeys(names, sys.executable), folder, 2 * repetitions + 1)
    one = best(taken[names[0]])
    print(f"\n### Indexing {size / 1e9:.1f} GB of JSON Lines\n\n| | s | GB/s | of `wc -l` |\n|---|---|---|---|")
    for name, done in taken.items():
        seconds = best(done)
        print(f"| {name} | {seconds:.3f} | {size / 1e9 / seconds:.1f} | {one / seconds:.2f}x |", flush=True)


def measure_tokenize(folder: Path, size: int, repetitions: int, litdata: str) -> None:
    write_lines(folder / "lines.jsonl", size)
    train(folder / "lines.jsonl", folder / "tokenizer.json")
    pythons = dict.fromkeys(["limit: encode_batch alone", "shardex", "shardex, 2 workers"], sys.executable)
    pythons["HF datasets, num_proc=2"] = sys.executable if importlib.util.find_spec("datasets") else ""
    pythons["data-forager"] = sys.executable if importlib.util.find_spec("data_forager") else ""
    pythons["LitData, num_workers=2"] = litdata
    taken = interleaved(pythons, folder, repetitions)
    limit, tokens = best(taken["limit: encode_batch alone"]), taken["limit: encode_batch alone"][0]["found"]
    print(f"\n### Tokenising {size / 1e6:.0f} MB of JSON Lines, {tokens / 1e6:.1f} M tokens\n")
    print("| | s | M tokens/s | of the limit |\n|---|---|---|---|")
    for name, done in taken.items():
        if name.startswith("shardex") and done[0]["found"] != tokens:
            raise SystemExit(f"{name}: expected {tokens} tokens, got {done[0]['found']}")
        seconds = best(done)
        print(f"| {name} | {seconds:.2f} | {tokens / 1e6 / seconds:.2f} | {limit / seconds:.0%} |", flush=True)


def best_fit_decreasing(lengths: np.ndarray, size: int) -> int:
    """Number of packs of best-fit decreasing, document by document; longer ones are cut into pieces of `size`."""
    rests = np.sort(lengths % size)[::-1]
    room: list[int] = []
    for rest in rests[rests > 0].tolist():
        at = bisect_left(room, rest)
        insort(room, (room.pop(at) if at < len(room) else size) - rest)
    return int((lengths // size).sum()) + len(room)


def measure_pack(folder: Path, tokens: int, repetitions: int) -> None:
    import shardex as sx

    write_documents(folder / "documents", tokens)
    ds = sx.open(folder / "documents")
    lengths = ds.lengths("tokens")
    taken = interleaved(dict.fromkeys(VIEWS, sys.executable), folder, repetitions)
    plain = min(one["found"]["seconds"] / one["found"]["tokens"] for one in next(iter(taken.values())))
    print(f"\n### Windows and packs of {LENGTH} tokens, {len(lengths):,} documents, {tokens / 1e6:.0f} M tokens\n")
    print("| | open, ms | epoch, s | M tokens/s | time of plain windows |\n|---|---|---|---|---|")
    for name, done in taken.items():
        opened = min(one["found"]["opened"] for one in done)
        epoch = min((one["found"] for one in done), key=lambda one: one["seconds"])
        each = epoch["seconds"] / epoch["tokens"]
        cells = [f"{1e3 * opened:.1f}", f"{epoch['seconds']:.2f}", f"{1e-6 / each:,.0f}", f"{each / plain:.2f}x"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    packs, reference = len(ds.pack(LENGTH, "best_fit")), best_fit_decreasing(lengths, LENGTH)
    waste = [1 - tokens / (count * LENGTH) for count in (packs, reference)]
    print(f"\nPadding of best_fit: {waste[0]:.3%}, of best-fit decreasing document by document: {waste[1]:.3%}.")


def folder_in_memory() -> str | None:
    """The folder of shared memory, if there is room; `None` means a temporary folder."""
    return "/dev/shm" if os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > MEMORY else None


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        return child(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller data, one repetition")
    parser.add_argument("--repetitions", type=int, help="3 by default")
    parser.add_argument(
        "--litdata", default=os.environ.get("BENCH_LITDATA", ""), help="a Python with LitData and tokenizers"
    )
    parser.add_argument("--sections", default="index,tokenize,pack")
    parser.add_argument("--folder", default=folder_in_memory(), help="where the data is made; in memory by default")
    given = parser.parse_args()
    repetitions = given.repetitions or (1 if given.quick else 3)
    sizes = QUICK if given.quick else BYTES
    for section in given.sections.split(","):
        with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
            folder = Path(scratch) / "data"
            folder.mkdir()
            if section == "index":
                measure_index(folder, sizes["index"], repetitions)
            elif section == "tokenize":
                measure_tokenize(folder, sizes["tokenize"], repetitions, given.litdata)
            else:
                measure_pack(folder, QUICK_TOKENS if given.quick else TOKENS, repetitions)


if __name__ == "__main__":
    main()
