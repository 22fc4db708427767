"""`tokenize`: tokens of documents in any format, special tokens, dtypes, errors with their place, continued runs."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardex as sx
from shardex.errors import ArgumentError, FieldError, SchemaError
from tests.text.corpora import END, KINDS, bpe, documents, expected_ids, fast, tiktoken_encoding, tokenizer_of


def write_jsonl(path: Path, texts: list[Any], **more: list[Any]) -> str:
    columns = {"text": texts, **more}
    lines = [json.dumps(dict(zip(columns, values, strict=True))) for values in zip(*columns.values(), strict=True)]
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def tokens_of(ds: Any) -> list[list[int]]:
    return [one.tokens.tolist() for one in ds]


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def utf8(text: str) -> list[int]:
    return list(text.encode())


# -- tokens ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_of_every_package_are_the_same_with_workers(kind: str, tmp_path: Path) -> None:
    tokenizer, texts = tokenizer_of(kind), documents(200)
    source = write_jsonl(tmp_path / "a.jsonl", texts)
    here = sx.tokenize(source, tokenizer, tmp_path / "here", eos=5, batch_size=16)
    assert tokens_of(here) == [[*expected_ids(kind, tokenizer, text), 5] for text in texts]
    assert here.features == sx.Features.of({"tokens": sx.Array("uint16", (None,))})
    if kind in ("tokenizers", "tiktoken"):
        sx.tokenize(source, tokenizer, tmp_path / "there", eos=5, batch_size=16, workers=2)
        assert files_of(tmp_path / "there") == files_of(tmp_path / "here")


def test_inputs_of_all_kinds(tmp_path: Path) -> None:
    texts = ["the cat", "", "of ä"]
    expected = [utf8(text) for text in texts]
    sx.write(tmp_path / "native", {"text": texts, "id": [1, 2, 3]})
    sx.write(tmp_path / "parquet", {"text": texts, "id": [1, 2, 3]}, format="parquet")
    inputs: list[Any] = [
        write_jsonl(tmp_path / "a.jsonl", texts),
        [write_jsonl(tmp_path / "b.jsonl", texts[:1]), write_jsonl(tmp_path / "c.jsonl", texts[1:])],
        tmp_path / "native",
        tmp_path / "parquet",
        [{"text": text} for text in texts],
        {"text": texts},
        sx.open(tmp_path / "native"),
    ]
    for number, one in enumerate(inputs):
        assert tokens_of(sx.tokenize(one, utf8, tmp_path / f"out{number}")) == expected
    view = sx.open(tmp_path / "native")[::-1].take(2)
    assert tokens_of(sx.tokenize(view, utf8, tmp_path / "view")) == expected[:0:-1]
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    assert tokens_of(sx.tokenize(tmp_path / "c.jsonl.gz", utf8, tmp_path / "gz")) == expected
    (tmp_path / "d.csv").write_text("id,text\n1,one\n2,two\n")
    assert tokens_of(sx.tokenize(tmp_path / "d.csv", utf8, tmp_path / "csv")) == [utf8("one"), utf8("two")]
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    assert tokens_of(sx.tokenize(tmp_path / "lines.txt", utf8, tmp_path / "lines")) == [utf8("one"), utf8("two")]
    whole = sx.open(tmp_path / "lines.txt", lines=False)
    assert tokens_of(sx.tokenize(whole, utf8, tmp_path / "whole")) == [utf8("one\ntwo\n")]


def test_begin_and_end_also_of_empty_documents_and_arrays(tmp_path: Path) -> None:
    texts = [{"text": "ab"}, {"text": ""}]
    assert tokens_of(sx.tokenize(texts, utf8, tmp_path / "a", bos=1, eos=2)) == [[1, 97, 98, 2], [1, 2]]
    assert tokens_of(sx.tokenize(texts, utf8, tmp_path / "b")) == [[97, 98], []]
    arrays = sx.tokenize(texts, lambda text: np.frombuffer(text.encode(), np.uint8), tmp_path / "c", eos=2)
    assert tokens_of(arrays) == [[97, 98, 2], [2]]
    own = sx.tokenize(texts, fast(), tmp_path / "d", bos=True, eos=True)
    assert tokens_of(own)[1] == [1, 0]
    by_text = sx.tokenize(texts, bpe(), tmp_path / "e", eos=END)
    assert tokens_of(by_text)[1] == [0]


def test_no_documents(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    for number, inputs in enumerate(([], tmp_path / "empty.jsonl")):
        assert len(sx.tokenize(inputs, bpe(), tmp_path / f"out{number}")) == 0
        aux = {"length": lambda sample, ids: ids * 0}
        assert len(sx.tokenize(inputs, bpe(), tmp_path / f"aux{number}", aux=aux, format="arrow")) == 0


def test_a_token_that_the_tokenizer_adds_is_not_added_twice(tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = bpe()
    tokenizer.post_processor = TemplateProcessing(single=f"$A {END}", pair=None, special_tokens=[(END, 0)])
    texts = [{"text": "the"}]
    ds = sx.tokenize(texts, tokenizer, tmp_path / "a", add_special_tokens=True, bos=1)
    assert tokens_of(ds) == [[1, *expected_ids("tokenizers", tokenizer, "the"), 0]]
    with pytest.raises(ArgumentError, match="expected eos=None, because the tokenizers tokenizer adds the token 0"):
        sx.tokenize(texts, tokenizer, tmp_path / "b", add_special_tokens=True, eos=END)


def test_long_documents_are_encoded_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardex.text.encode_documents._CHARACTERS", 100)
    texts = [*documents(50), "the " * 400, *documents(20)]
    ds = sx.tokenize([{"text": text} for text in texts], bpe(), tmp_path / "a", batch_size=30)
    assert tokens_of(ds) == [expected_ids("tokenizers", bpe(), text) for text in texts]


def test_batches_of_large_documents_are_smaller(tmp_path: Path) -> None:
    texts = [{"text": "the cat " * 100_000} for _ in range(60)]
    ds = sx.tokenize(texts, lambda texts: [[len(texts)] for _ in texts], tmp_path / "a", batched=True)
    assert max(max(tokens_of(ds))) <= 20


# -- dtypes ---------------------------------------------------------------------------------------------------


def test_dtype_holds_the_vocabulary_or_is_given(tmp_path: Path) -> None:
    class Large:
        vocab_size = 65537

        def __call__(self, text: str) -> list[int]:
            return [65536]

    texts = [{"text": "the"}]
    assert sx.tokenize(texts, Large(), tmp_path / "a")[0].tokens.dtype == np.uint32
    assert sx.tokenize(texts, utf8, tmp_path / "b")[0].tokens.dtype == np.uint32
    assert sx.tokenize(texts, utf8, tmp_path / "c", dtype=np.int64)[0].tokens.dtype == np.int64
    for wrong in ("float32", "text", ">u2"):
        with pytest.raises(ArgumentError, match="expected dtype= of integers"):
            sx.tokenize(texts, utf8, tmp_path / "d", dtype=wrong)
    with pytest.raises(ArgumentError, match=r"expected a dtype that holds the ids of bos and eos \(300\)"):
        sx.tokenize(texts, utf8, tmp_path / "d", dtype="uint8", eos=300)


@pytest.mark.parametrize("workers", [None, 2])
def test_token_that_does_not_fit_is_named_with_document_and_file(tmp_path: Path, workers: int | None) -> None:
    texts = ["!!"] * 150
    texts[130] = "!the"
    source = write_jsonl(tmp_path / "a.jsonl", texts)
    number = bpe().token_to_id("the")
    assert number > 255
    with pytest.raises(SchemaError) as caught:
        sx.tokenize(source, bpe(), tmp_path / "out", dtype="uint8", batch_size=64, workers=workers)
    message = str(caught.value)
    assert f"expected token ids up to 255, the highest of uint8, got token {number} ('the') at token 1" in message
    assert f'pass dtype="uint16" - at sample 130 of {source}' in message


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ([1, -1], "expected token ids from 0 to 4294967295, got -1 at token 1"),
        ([1 << 40], "expected token ids from 0 to 4294967295, got 1099511627776 at token 0"),
        ([1, 2.5], "expected token ids .integers., got float 2.5 at token 1"),
        ([[1, 2]], "expected token ids .integers., got list"),
        (np.array([1.5]), "expected token ids in an array of integers of one dimension"),
        (np.array([-3]), "expected token ids from 0 to 4294967295, got -3"),
        ("text", "expected token ids .a list or array of integers. from function tokenizer"),
        (None, "expected token ids .a list or array of integers. from function tokenizer"),
    ],
)
def test_results_that_are_no_ids(result: Any, message: str, tmp_path: Path) -> None:
    texts = [{"text": "a"}, {"text": "wrong"}]
    with pytest.raises(SchemaError, match=rf"{message}.* - at sample 1"):
        sx.tokenize(texts, lambda text: result if text == "wrong" else [1], tmp_path / "out")


# -- errors ---------------------------------------------------------------------------------------------------


def test_field_without_text_is_named_with_sample_and_file(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", ["a", None, "b", 7], number=[1, 2, 3, 4])
    message = r"expected a text in the field text, got none - at sample 1 of .*a.jsonl, line 2$"
    with pytest.raises(SchemaError, match=message):
        sx.tokenize(source, utf8, tmp_path / "out")
    with pytest.raises(SchemaError, match=r"expected text in the field number, got int64"):
        sx.tokenize(source, utf8, tmp_path / "out", field="number")
    with pytest.raises(FieldError, match="txt"):
        sx.tokenize(source, utf8, tmp_path / "out", field="txt")
    with pytest.warns(UserWarning, match="2 of 4 samples were left out"):
        ds = sx.tokenize(source, utf8, tmp_path / "out", on_error="skip")
    assert tokens_of(ds) == [[97], [98]]
    assert [one.row for one in ds.left_out] == [1, 3]
    assert [one.place for one in ds.left_out] == [f"sample {row} of {source}, line {row + 1}" for row in (1, 3)]


def test_errors_name_the_line_of_a_document(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n\n{"text": "b"}\n\n{"text": 1}\n')
    (tmp_path / "a.json").write_text('[{"text": "a"},\n {"text": 1}]')
    (tmp_path / "a.csv").write_text('text,number\n"a\na",1\n,2\n')
    with pytest.raises(SchemaError, match=r"got int 1 - at sample 2 of .*a.jsonl, line 5$"):
        sx.tokenize(tmp_path / "a.jsonl", utf8, tmp_path / "out")
    with pytest.raises(SchemaError, match=r"at position 0 of the view, sample 2 of .*a.jsonl, line 5$"):
        sx.tokenize(sx.open(tmp_path / "a.jsonl")[::-1], utf8, tmp_path / "out")
    with pytest.raises(SchemaError, match=r"at sample 1 of .*a.json, element 1 \(from 0, at byte 17\)$"):
        sx.tokenize(tmp_path / "a.json", utf8, tmp_path / "out")
    with pytest.raises(SchemaError, match=r"got none - at sample 1 of .*a.csv, line 4$"):
        sx.tokenize(tmp_path / "a.csv", utf8, tmp_path / "out")


@pytest.mark.parametrize("batched", [False, True])
def test_error_of_a_tokenizer_names_the_document(tmp_path: Path, batched: bool) -> None:
    def encode(text: str) -> list[int]:
        if "wrong" in text:
            raise ValueError("cannot encode this")
        return utf8(text)

    def encode_all(texts: list[str]) -> list[list[int]]:
        return [encode(text) for text in texts]

    source = write_jsonl(tmp_path / "a.jsonl", ["a"] * 70 + ["wrong"] + ["b"] * 70)
    function = encode_all if batched else encode
    with pytest.raises(ValueError, match="cannot encode this") as caught:
        sx.tokenize(source, function, tmp_path / "out", batched=batched, dtype="uint16")
    assert any(f"at sample 70 of {source}" in note for note in caught.value.__notes__)
    with pytest.warns(UserWarning, match="1 of 141 samples were left out"):
        ds = sx.tokenize(source, function, tmp_path / "out", batched=batched, dtype="uint16", on_error="skip")
    assert len(ds) == 140


def test_surrogates_that_a_tokenizer_cannot_encode(tmp_path: Path) -> None:
    half = r"got half of a surrogate pair, '\\ud800', at character .* - at sample 1"
    with pytest.raises(SchemaError, match=half):
        sx.tokenize([{"text": "a"}, {"text": "b\ud800"}], bpe(), tmp_path / "out")
    chats = [{"messages": [{"role": "user", "content": text}]} for text in ("a", "b\ud800")]
    with pytest.raises(SchemaError, match=half):
        sx.tokenize(chats, bpe(), tmp_path / "out", messages="messages", template="{{ messages[0].content }}")


def test_special_tokens_that_no_dtype_holds(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"expected eos= to be an id of the function tokenizer .*, got 4294967296"):
        sx.tokenize([{"text": "a"}], utf8, tmp_path / "out", eos=1 << 32)


# -- more arrays and fields -----------------------------------------------------------------------------------


def test_functions_of_arrays_do_not_change_the_tokens(tmp_path: Path) -> None:
    def change(sample: Any, ids: Any) -> Any:
        ids += 1
        return ids

    with pytest.raises(ValueError, match="read-only") as caught:
        sx.tokenize([{"text": "ab"}], utf8, tmp_path / "out", aux={"more": (change, "int64")})
    assert any("at sample 0" in note for note in caught.value.__notes__)


def test_wrong_results_and_dtypes_of_arrays(tmp_path: Path) -> None:
    texts, out = [{"text": "ab"}], tmp_path / "out"
    with pytest.raises(ArgumentError, match="expected a dtype of numbers for the array x of aux=, got 'number'"):
        sx.tokenize(texts, utf8, out, aux={"x": ("positions", "number")})
    with pytest.raises(SchemaError, match="expected results of aux= to find the dtype of x, got no numbers"):
        sx.tokenize(texts, utf8, out, aux={"x": lambda sample, ids: [None] * len(ids)})
    with pytest.raises(SchemaError, match=r"expected 2 values of float16, one for each token, in the array x of aux="):
        sx.tokenize(texts, utf8, out, aux={"x": (lambda sample, ids: [1e9] * len(ids), "float16")})
    made = sx.tokenize(texts, utf8, out, aux={"x": (lambda sample, ids: [np.nan, np.inf], "float16")})
    assert np.array_equal(made[0].x, [np.nan, np.inf], equal_nan=True)


def test_arrays_per_token(tmp_path: Path) -> None:
    texts = [{"text": "", "weight": 0.5}, {"text": "ab", "weight": 0.25}, {"text": "c", "weight": 1.0}]
    aux = {
        "position": "positions",
        "segment_ids": "segment_ids",
        "weights": lambda sample, ids: np.full(len(ids), sample.weight),
        "is_b": (lambda sample, ids: ids == ord("b"), "uint8"),
    }
    ds = sx.tokenize(texts, utf8, tmp_path / "out", aux=aux, eos=0)
    assert [one.position.tolist() for one in ds] == [[0], [0, 1, 2], [0, 1]]
    assert [one.segment_ids.tolist() for one in ds] == [[1], [1, 1, 1], [1, 1]]
    assert [one.weights.tolist() for one in ds] == [[0.5], [0.25, 0.25, 0.25], [1.0, 1.0]]
    assert [one.is_b.tolist() for one in ds] == [[0], [0, 1, 0], [0, 0]]
    dtypes = {"tokens": "uint32", "position": "int32", "segment_ids": "int32", "weights": "float64", "is_b": "uint8"}
    assert ds.features == sx.Features.of({name: sx.Array(one, (None,)) for name, one in dtypes.items()})


def test_wrong_arrays_per_token(tmp_path: Path) -> None:
    texts = [{"text": "ab"}, {"text": "c"}]
    for function in (lambda sample, ids: [1], lambda sample, ids: [300] * len(ids), lambda sample, ids: "text"):
        with pytest.raises(
            SchemaError, match=r"of uint8, one for each token, in the array mask of aux=.* - at sample 0"
        ):
            sx.tokenize(texts, utf8, tmp_path / "out", aux={"mask": (function, "uint8")}, format="arrow")
    with pytest.raises(ZeroDivisionError) as caught:
        sx.tokenize(texts, utf8, tmp_path / "out", aux={"mask": (lambda sample, ids: 1 // 0, "uint8")}, format="arrow")
    assert any("at sample 0" in note for note in caught.value.__notes__)
    for wrong in ("no such array", {"mask": 5}, {"mask": "lengths"}, lambda sample, ids: ids, [1], 5):
        with pytest.raises(ArgumentError, match="expected aux="):
            sx.tokenize(texts, utf8, tmp_path / "out", aux=wrong)
    with pytest.raises(ArgumentError, match=r"expected different names .* got tokens twice"):
        sx.tokenize(texts, utf8, tmp_path / "out", aux={"tokens": "positions"})


def test_fields_are_kept_where_the_format_can_store_them(tmp_path: Path) -> None:
    texts = [{"text": "a", "id": "x", "lang": "de"}, {"text": "b", "id": "y", "lang": "en"}]
    ds = sx.tokenize(texts, utf8, tmp_path / "out", keep=("id", "lang"), format="arrow")
    assert [(one.id, one.lang, one.tokens.tolist()) for one in ds] == [("x", "de", [97]), ("y", "en", [98])]
    with pytest.raises(ArgumentError, match='expected no keep= with format="tokens"'):
        sx.tokenize(texts, utf8, tmp_path / "tokens", keep="id")
    with pytest.raises(FieldError, match="idd"):
        sx.tokenize(texts, utf8, tmp_path / "other", keep="idd", format="arrow")


# -- runs -----------------------------------------------------------------------------------------------------


RUN = """
import os, sys
import shardex as sx
from shardex.text.encode_documents import TokenizeBatch
from tests.text.corpora import tokenizer_of

source, out, last = sys.argv[1:]
encode, calls = TokenizeBatch.__call__, []

def counted(self, batch):
    calls.append(len(batch))
    if len(calls) == int(last):
        os.kill(os.getpid(), 9)
    return encode(self, batch)

TokenizeBatch.__call__ = counted
sx.tokenize(source, tokenizer_of("tokenizers"), out, eos=5, batch_size=16)
print(len(calls))
"""


def test_killed_run_is_continued_by_another_process(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", documents(640))
    sx.tokenize(source, bpe(), tmp_path / "whole", eos=5, batch_size=16)

    def run(last: int) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-c", RUN, source, str(tmp_path / "out"), str(last)]
        return subprocess.run(command, capture_output=True, check=False)

    assert run(25).returncode == -9
    assert not (tmp_path / "out").exists()
    again = run(1000)
    assert again.returncode == 0, again.stderr.decode()
    assert int(again.stdout) < 40 - 15, "finished parts are not run again"
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
    assert sorted(os.listdir(tmp_path)) == [".shardex", "a.jsonl", "out", "whole"]


def test_other_tokenizer_begins_again(tmp_path: Path) -> None:
    texts = [{"text": text} for text in documents(300)]

    def stopped(text: str) -> list[int]:
        if text == texts[250]["text"]:
            raise ValueError("stop")
        return [1]

    with pytest.raises(ValueError, match="stop"):
        sx.tokenize(texts, stopped, tmp_path / "out", batch_size=16)
    ds = sx.tokenize(texts, bpe(), tmp_path / "out", batch_size=16)
    assert tokens_of(ds) == [expected_ids("tokenizers", bpe(), one["text"]) for one in texts]


def test_metadata_describes_tokens_and_tokenizer(tmp_path: Path) -> None:
    tokenizer = fast()
    ds = sx.tokenize([{"body": "the cat"}], tokenizer, tmp_path / "out", field="body", bos=True, eos=END)
    assert ds.metadata == {
        "tokenizer": {
            "kind": "transformers",
            "name": type(tokenizer).__name__,
            "sha256": hashlib.sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest(),
            "vocab_size": len(tokenizer),
        },
        "bos": 1,
        "eos": 0,
        "pad": 0,
        "text_field": "body",
        "options": {"add_special_tokens": False},
    }
    assert sx.open(tmp_path / "out").take(1).metadata == ds.metadata


@pytest.mark.parametrize("format", ["tokens", "arrow"])
def test_append_with_the_same_tokenizer_of_another_name(format: str, tmp_path: Path) -> None:
    bpe().save(str(tmp_path / "tokenizer.json"))
    made = sx.tokenize([{"text": "a"}], bpe(), tmp_path / "out", format=format)
    ds = sx.tokenize(
        [{"body": "b"}], tmp_path / "tokenizer.json", tmp_path / "out", field="body", format=format, mode="append"
    )
    assert tokens_of(ds) == [expected_ids("tokenizers", bpe(), text) for text in "ab"]
    assert ds.metadata == made.metadata and ds.metadata["text_field"] == "text"


def test_append_to_tokens_of_an_unknown_tokenizer(tmp_path: Path) -> None:
    schema = {"tokens": sx.Array("uint16", (None,))}
    sx.write(tmp_path / "out", [{"tokens": [1]}], schema, format="tokens")
    with pytest.raises(SchemaError, match="expected data with the metadata of this dataset, got other"):
        sx.tokenize([{"text": "a"}], bpe(), tmp_path / "out", mode="append")
    assert len(sx.open(tmp_path / "out")) == 1


def test_append_and_overwrite(tmp_path: Path) -> None:
    first, second = [{"text": "a"}], [{"text": "b"}]
    sx.tokenize(first, bpe(), tmp_path / "out")
    ds = sx.tokenize(second, bpe(), tmp_path / "out", mode="append")
    assert tokens_of(ds) == [expected_ids("tokenizers", bpe(), text) for text in "ab"]
    with pytest.raises(ArgumentError, match="expected the tokenizer that has made the existing tokens"):
        sx.tokenize(second, tiktoken_encoding(), tmp_path / "out", mode="append")
    with pytest.raises(ArgumentError, match=r"made the existing tokens \(eos: None\), got 5"):
        sx.tokenize(second, bpe(), tmp_path / "out", eos=5, mode="append")
    with pytest.raises(
        SchemaError, match=r"as tokens.json says \(tokens uint16\[\?\]\), got a schema of tokens uint32"
    ):
        sx.tokenize(second, bpe(), tmp_path / "out", dtype="uint32", mode="append")
    ds = sx.tokenize(second, tiktoken_encoding(), tmp_path / "out", mode="overwrite")
    assert tokens_of(ds) == [[98]]
    with pytest.raises(FileExistsError):
        sx.tokenize(second, bpe(), tmp_path / "out")
