"""Tokens for a language model: a corpus of text to token files, windows of one length, a mixture of two corpora."""

import pathlib

import numpy as np

import shardex as sx

pathlib.Path("web.jsonl").write_text("".join(f'{{"text": "page {k} of the web"}}\n' for k in range(200)))
pathlib.Path("books.jsonl").write_text("".join(f'{{"text": "chapter {k}", "year": {k}}}\n' for k in range(50)))
web, books = sx.open("web.jsonl"), sx.open("books.jsonl")
assert web[3].text == "page 3 of the web" and books["year"].tolist() == list(range(50))


def tokenize(text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8).astype(np.uint16)


for name, corpus in (("web", web), ("books", books)):
    with sx.create(f"{name}-tokens", {"tokens": sx.Array(np.uint16, (None,))}, format="tokens") as out:
        for sample in corpus:
            out.append(tokens=tokenize(sample.text))

documents = sx.open("web-tokens")
assert len(documents) == 200 and bytes(documents[3].tokens.astype("uint8")) == b"page 3 of the web"
padded = next(iter(sx.Loader(documents, 4, fill=0xFFFF)))
assert padded.tokens.shape == (4, 17) and padded.lengths_of("tokens").tolist() == [17] * 4

# Training windows of 64 tokens, across documents, mixed 3 to 1.
windows = {name: sx.open(f"{name}-tokens", window=64) for name in ("web", "books")}
mixture = sx.mix(windows, {"web": 3, "books": 1}, seed=0, length=40)
loader = sx.Loader(mixture, batch_size=8)
sources = [name for batch in loader for name in batch.origin.sources]
assert len(sources) == 40 and sources.count("books") == 10
assert all(batch.tokens.shape == (8, 64) and batch.tokens.dtype == np.uint16 for batch in loader)

# A file of raw tokens from another tool.
np.arange(1000, dtype=np.uint16).tofile("train.bin")
raw = sx.open("train.bin", format="tokens", dtype=np.uint16, window=100)
assert len(raw) == 10 and raw[9].tokens[-1] == 999 and raw["tokens"].shape == (10, 100)
