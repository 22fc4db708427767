"""The command `tokenize`: tokenizers from files and modules, special tokens, formats, errors in one line."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import shardex as sx
from shardex.cli import commands as cli
from tests.text.corpora import END, bpe, sentencepiece_model

FUNCTIONS = """
def characters(text):
    if text == "wrong":
        raise ValueError("cannot encode this")
    return [ord(one) for one in text]


def many(texts):
    return [characters(text) for text in texts]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with documents, tokenizers and a module of functions; it is the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "functions", raising=False)
    (tmp_path / "functions.py").write_text(FUNCTIONS, "utf-8")
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "ab", "id": 1}) + "\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "", "id": 2}) + "\n")
    bpe().save("tokenizer.json")
    return tmp_path


def run(*arguments: object, code: int = 0) -> Result:
    done = CliRunner().invoke(cli.app, ["tokenize", *map(str, arguments)])
    assert done.exit_code == code, done.output
    return done


def tokens(path: str) -> list[list[int]]:
    return [one.tokens.tolist() for one in sx.open(path)]


def test_tokenizer_file_and_several_inputs() -> None:
    expected = bpe().encode("ab").ids
    printed = run("a.jsonl", "b.jsonl", "tokenizer.json", "out", "--eos", END, "--bos", "5").stdout
    assert printed.startswith(f"2 samples, {len(expected) + 4} tokens, 1 file, ") and printed.count("\n") == 1
    assert tokens("out") == [[5, *expected, 0], [5, 0]]
    assert sx.open("out").metadata["eos"] == 0
    Path("own.model").write_bytes(sentencepiece_model())
    run("*.jsonl", "own.model", "pieces", "--eos", "true")
    assert tokens("pieces")[1] == [2]


@pytest.mark.parametrize("function", [("functions:characters",), ("functions:many", "--batched")])
def test_function_of_a_module(function: tuple[str, ...]) -> None:
    facts = run("*.jsonl", *function, "out", "--dtype", "uint16", "--keep", "id", "--to", "arrow", "--json")
    assert json.loads(facts.stdout)["samples"] == 2
    assert [(one.id, one.tokens.tolist()) for one in sx.open("out")] == [(1, [97, 98]), (2, [])]


def test_arrays_and_options_of_the_format() -> None:
    run("*.jsonl", "functions:characters", "out", "--aux", "positions,segment_ids", "--to-option", "shard_size=4")
    assert sx.open("out")[0].positions.tolist() == [0, 1]
    arguments = ("*.jsonl", "functions:characters", "out", "--aux", "positions,segment_ids")
    assert json.loads(run(*arguments, "--mode", "append", "--json").stdout)["tokens"] == 2
    assert len(sx.open("out")) == 4


def test_conversations() -> None:
    tokenizer = bpe()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.save("chat.json")
    turns = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"}]
    Path("chat.jsonl").write_text(json.dumps({"turns": turns}) + "\n")
    Path("own.jinja").write_text("{% for one in messages %}{{ one.role }}:{{ one.content }}\n{% endfor %}")
    for number, template in enumerate(("chatml", "own.jinja")):
        run("chat.jsonl", "chat.json", f"out{number}", "--messages", "turns", "--template", template)
        (sample,) = sx.open(f"out{number}")
        assert len(sample.loss_mask) == len(sample.tokens) and 0 < sample.loss_mask.sum() < len(sample.tokens)
    everything = ("--messages", "turns", "--template", "chatml", "--train-on", "user,assistant")
    run("chat.jsonl", "chat.json", "all", *everything)
    assert sx.open("all")[0].loss_mask.sum() > sx.open("out0")[0].loss_mask.sum()


def test_errors_are_one_line() -> None:
    Path("c.jsonl").write_text('{"text": "a"}\n{"text": "wrong"}\n')
    failed = run("c.jsonl", "functions:characters", "out", code=1).stderr
    assert failed.startswith("shardex: ValueError: cannot encode this") and "at sample 1 of " in failed
    printed = run("c.jsonl", "functions:characters", "out", "--on-error", "skip").stdout
    assert "left out: sample 1 of" in printed and "1 sample, " in printed
    assert "expected the path of a tokenizer.json" in run("a.jsonl", "gpt2", "other", code=1).stderr
    assert "expected eos= to be a token" in run("a.jsonl", "tokenizer.json", "other", "--eos", "<s>", code=1).stderr
    assert "fields of text: text" in run("a.jsonl", "tokenizer.json", "other", "--field", "id", code=1).stderr
