"""Preparation on two cores: clean a corpus, tokenize it into windows, continue after an error, add a field, train."""

import json
import pathlib
import warnings
from typing import Any

import numpy as np

import shardex as sx

lines = [{"id": k, "lang": "en" if k % 3 else "de", "text": f"document {k} " * (k % 7 + 1)} for k in range(3_000)]
lines[1_700]["text"] = ""
pathlib.Path("corpus.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
corpus = sx.open("corpus.jsonl")


def windows(sample: sx.DictSample) -> list[dict[str, Any]]:
    """Tokenize a document and cut it into windows of 16 tokens; the rest is dropped."""
    if not sample.text:
        raise ValueError("an empty document")
    tokens = np.frombuffer(sample.text.encode(), np.uint8).astype(np.uint16)
    return [{"id": sample.id, "tokens": tokens[k : k + 16]} for k in range(0, len(tokens) - 15, 16)]


english = corpus.where("lang = 'en'")
schema = {"id": int, "tokens": sx.Array("uint16", (16,))}
try:
    sx.write("windows", english, schema, transform=windows, workers=2)
    raise AssertionError("expected an error")
except ValueError as error:
    text = "\n".join([str(error), *error.__notes__])
    assert "an empty document" in text and "windows" in text and "run the same call again" in text
    assert "position 1133 of the view, sample 1700 of " in text and "corpus.jsonl" in text

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    made = sx.write("windows", english, schema, transform=windows, workers=2, on_error="skip")
assert "1 of 2000 samples were left out" in str(caught[0].message)
assert english[made.left_out[0].row].id == 1_700
expected = [window for sample in english if sample.text for window in windows(sample)]
assert len(made) == len(expected) and np.array_equal(made["tokens"], [window["tokens"] for window in expected])
assert not list(pathlib.Path().glob(".windows*")), "nothing is left behind"

# The same with one worker, as Parquet: the samples are the same.
good = english.where("text != ''")
one = sx.write("windows-parquet", good, schema, transform=windows, format="parquet", progress=False)
assert np.array_equal(one["tokens"], made["tokens"])

# A field that is computed in batches, fewer files, and an epoch.
with sx.edit("windows") as tx:
    tx.add_field("mean", "float32", lambda batch: batch.tokens.mean(axis=1), batched=True, workers=2)
sx.compact("windows")
ready = sx.open("windows")
assert abs(ready[5].mean - ready[5].tokens.mean()) < 1e-3
assert len({*ready.shards(range(len(ready)))}) == 1
assert sum(len(batch) for batch in sx.Loader(ready, 64, shuffle=True, seed=0)) == len(expected)
