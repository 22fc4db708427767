"""Adapters of tokenizers: the ids of each package, special tokens, the same fingerprint in every process."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardex.errors import ArgumentError, FormatError, NotFoundError, SchemaError
from shardex.text.huggingface_tokenizers import TokenizersAdapter, TransformersAdapter
from shardex.text.tokenizers import FunctionAdapter, TiktokenAdapter, adapter_of, adapter_of_function, special_id
from shardex.workers import function_fingerprint, unknown_objects
from tests.text.corpora import (
    END,
    KINDS,
    bpe,
    documents,
    expected_ids,
    fast,
    sentencepiece_model,
    sentencepiece_processor,
    tiktoken_encoding,
    tokenizer_of,
)


def ids_of(adapter: Any, texts: list[str]) -> list[list[int]]:
    return [np.asarray(one, np.int64).tolist() for one in adapter.encode_batch(texts)]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_the_package_also_after_pickling(kind: str) -> None:
    tokenizer, texts = tokenizer_of(kind), documents(40)
    adapter = adapter_of(tokenizer)
    expected = [expected_ids(kind, tokenizer, text) for text in texts]
    assert ids_of(adapter, texts) == expected
    again = pickle.loads(pickle.dumps(adapter))
    assert ids_of(again, texts) == expected
    assert again.describe() == adapter.describe()
    assert (again.bos, again.eos, again.pad, again.vocab_size) == (
        adapter.bos,
        adapter.eos,
        adapter.pad,
        adapter.vocab_size,
    )
    assert adapter.kind == kind
    assert adapter.vocab_size is not None
    assert max(max(one, default=0) for one in expected) < adapter.vocab_size


FINGERPRINTS = """
import pickle, sys
from shardex.text.tokenizers import adapter_of
from shardex.workers import function_fingerprint
from tests.text.corpora import KINDS, tokenizer_of

for kind, adapter in zip(KINDS, pickle.load(sys.stdin.buffer)):
    print(function_fingerprint(adapter_of(tokenizer_of(kind))), function_fingerprint(adapter))
"""


def test_fingerprint_is_the_same_in_fresh_processes_and_after_use() -> None:
    adapters, before = [], []
    for kind in KINDS:
        tokenizer = tokenizer_of(kind)
        adapters.append(adapter_of(tokenizer))
        before.append(function_fingerprint(adapters[-1]))
        adapters[-1].encode_batch(documents(10))
        expected_ids(kind, tokenizer, "some use of the tokenizer itself")
        assert unknown_objects(adapters[-1]) == []
        assert function_fingerprint(adapter_of(tokenizer)) == before[-1]
    for seed in ("1", "2"):
        found = subprocess.run(
            [sys.executable, "-c", FINGERPRINTS],
            input=pickle.dumps(adapters),
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        )
        assert found.stdout.decode().split() == [one for one in before for _ in range(2)]


def test_fingerprint_changes_with_the_content() -> None:
    other = bpe()
    other.add_special_tokens(["<|more|>"])
    split = bpe()
    split.encode_special_tokens = True
    made = [adapter_of(one) for one in (bpe(), other, split, fast(), fast(chat_template="{{ messages }}"))]
    made += [adapter_of(bpe(), add_special_tokens=True), adapter_of(bpe(size=300))]
    assert len({function_fingerprint(one) for one in made}) == len(made)
    one, two = tiktoken_encoding(), tiktoken_encoding()
    two._mergeable_ranks[b"on"] = two._mergeable_ranks.pop(b"at")
    assert function_fingerprint(adapter_of(one)) != function_fingerprint(adapter_of(two))
    reverse = sentencepiece_processor(reverse=True)
    assert function_fingerprint(adapter_of(sentencepiece_processor())) != function_fingerprint(adapter_of(reverse))


def test_padding_and_truncation_of_a_tokenizer_are_not_applied_and_not_changed() -> None:
    tokenizer, texts = bpe(), documents(30)
    expected = [expected_ids("tokenizers", tokenizer, text) for text in texts]
    tokenizer.enable_padding(pad_id=7)
    tokenizer.enable_truncation(3)
    adapter = adapter_of(tokenizer)
    assert ids_of(adapter, texts) == expected
    assert ids_of(pickle.loads(pickle.dumps(adapter)), texts) == expected
    assert adapter.pad == 7
    assert tokenizer.truncation["max_length"] == 3
    assert adapter.sha256 == adapter_of(bpe()).sha256
    used = fast()
    before = function_fingerprint(adapter_of(used))
    used(texts, padding=True, truncation=True, max_length=3)
    assert ids_of(adapter_of(used), texts) == expected
    assert function_fingerprint(adapter_of(used)) == before


@pytest.mark.parametrize("split", [False, True])
def test_special_tokens_in_the_text_are_split_as_the_tokenizer_says(split: bool) -> None:
    text = f"the {END} of"
    tokenizer = bpe()
    tokenizer.encode_special_tokens = split
    adapter = adapter_of(tokenizer)
    expected = expected_ids("tokenizers", tokenizer, text)
    assert (tokenizer.token_to_id(END) in expected) is not split
    assert ids_of(adapter, [text]) == ids_of(pickle.loads(pickle.dumps(adapter)), [text]) == [expected]
    assert ids_of(adapter_of(fast(split_special_tokens=split)), [text]) == [expected]


def test_text_that_looks_like_a_special_token_is_text_for_tiktoken() -> None:
    adapter = adapter_of(tiktoken_encoding())
    (found,) = ids_of(adapter, ["<|endoftext|>"])
    assert adapter.eos not in found
    assert len(found) > 1


def test_own_special_tokens() -> None:
    adapter = adapter_of(fast())
    assert isinstance(adapter, TokenizersAdapter)
    assert (adapter.eos, adapter.bos, adapter.pad) == (0, 1, 0)
    assert adapter.special_tokens["eos_token"] == END
    assert adapter_of(tiktoken_encoding()).eos == 261
    assert (adapter_of(sentencepiece_processor()).bos, adapter_of(sentencepiece_processor()).pad) == (1, None)
    assert adapter_of(bpe()).eos is None


def test_added_special_tokens_of_tokenizers_and_sentencepiece() -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = bpe()
    tokenizer.post_processor = TemplateProcessing(
        single=f"<|begin|> $A {END}", pair=None, special_tokens=[("<|begin|>", 1), (END, 0)]
    )
    assert ids_of(adapter_of(tokenizer, add_special_tokens=True), [""]) == [[1, 0]]
    assert ids_of(adapter_of(tokenizer), [""]) == [[]]
    processor = sentencepiece_processor(add_bos=True, add_eos=True)
    assert ids_of(adapter_of(processor, add_special_tokens=True), [""]) == [[1, 2]]
    assert ids_of(adapter_of(processor), [""]) == [[]]
    for other in (tiktoken_encoding(), lambda text: [1]):
        with pytest.raises(ArgumentError, match="expected add_special_tokens=False"):
            adapter_of(other, add_special_tokens=True)


@pytest.mark.parametrize("kind", KINDS)
def test_begin_and_end_as_id_text_or_own(kind: str) -> None:
    adapter = adapter_of(tokenizer_of(kind))
    assert special_id(adapter, None, "eos") is None
    assert special_id(adapter, 5, "eos") == 5
    assert special_id(adapter, np.int64(5), "eos") == 5
    some = 21  # versions of sentencepiece learn different numbers of tokens from the same text, 38 at least
    text = adapter.token_text(some)
    assert text is not None
    assert adapter.token_id(text) == some
    assert special_id(adapter, text, "eos") == some
    if adapter.eos is not None:
        assert special_id(adapter, True, "eos") == adapter.eos
    else:
        with pytest.raises(ArgumentError, match="got True, and the tokenizers tokenizer does not say which"):
            special_id(adapter, True, "eos")
    for wrong in (100_000, -1, "no such token", 1.5):
        with pytest.raises(ArgumentError, match="expected eos= to be"):
            special_id(adapter, wrong, "eos")


def test_offsets_of_tokens() -> None:
    adapter = adapter_of(bpe())
    (ids, offsets), (none, nowhere) = adapter.encode_with_offsets(["the cat", ""]) or []
    assert offsets[0, 0] == 0 and offsets[-1, 1] == 7 and len(ids) == len(offsets)
    assert (len(none), nowhere.shape) == (0, (0, 2))


# -- files ----------------------------------------------------------------------------------------------------


def test_tokenizer_json_with_its_config(tmp_path: Path) -> None:
    tokenizer = bpe()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert adapter_of(tmp_path / "tokenizer.json").eos is None
    config = {"eos_token": {"content": END}, "bos_token": "<|begin|>", "chat_template": "{{ messages }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    for path in (tmp_path / "tokenizer.json", str(tmp_path)):
        adapter = adapter_of(path)
        assert (adapter.eos, adapter.bos, adapter.chat_template) == (0, 1, "{{ messages }}")
        assert ids_of(adapter, ["the cat"]) == [expected_ids("tokenizers", tokenizer, "the cat")]
        assert str(tmp_path.parent) not in adapter.name
    assert adapter_of(str(tmp_path)).sha256 == adapter_of(tokenizer).sha256


def test_sentencepiece_model_file(tmp_path: Path) -> None:
    path = tmp_path / "own.model"
    path.write_bytes(sentencepiece_model())
    adapter = adapter_of(path)
    assert (adapter.kind, adapter.name) == ("sentencepiece", "own.model")
    assert ids_of(adapter, documents(5)) == ids_of(adapter_of(sentencepiece_processor()), documents(5))


@pytest.mark.needs("tokenizers", "sentencepiece")
def test_wrong_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "a.model").write_bytes(b"not a model")
    (tmp_path / "empty.model").write_bytes(b"")
    (tmp_path / "a.txt").write_text("text")
    for name in ("tokenizer.json", "a.model", "empty.model"):
        with pytest.raises(FormatError, match=rf"{name}: expected a (tokenizer|sentencepiece)"):
            adapter_of(tmp_path / name)
    with pytest.raises(ArgumentError, match=r"a.txt: expected a tokenizer as .json"):
        adapter_of(tmp_path / "a.txt")
    with pytest.raises(NotFoundError, match="'gpt2'; a tokenizer that has a name is loaded by its package"):
        adapter_of("gpt2")
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError, match=r"expected a folder with tokenizer.json"):
        adapter_of(tmp_path / "empty")


# -- other tokenizers -----------------------------------------------------------------------------------------


def test_functions_return_ids_in_any_form() -> None:
    import torch

    tokenizer, packed = bpe(), fast()
    expected = [expected_ids("tokenizers", tokenizer, "the cat"), []]
    functions: list[Any] = [
        lambda text: tokenizer.encode(text).ids,
        lambda text: tuple(tokenizer.encode(text).ids),
        lambda text: np.array(tokenizer.encode(text).ids, np.int16),
        lambda text: torch.tensor(tokenizer.encode(text).ids, dtype=torch.int64),
        tokenizer.encode,
        packed,
        lambda text: packed(text, return_tensors="np"),
    ]
    for function in functions:
        assert ids_of(FunctionAdapter(function), ["the cat", ""]) == expected
    batched: list[Any] = [
        tokenizer.encode_batch,
        packed,
        lambda texts: [np.array(one.ids) for one in tokenizer.encode_batch(texts)],
    ]
    for function in batched:
        assert ids_of(FunctionAdapter(function, batched=True), ["the cat", ""]) == expected


def test_wrong_results_of_functions() -> None:
    with pytest.raises(SchemaError, match=r"expected token ids .* from function tokenizer .*, got str 'the cat'"):
        adapter_of(lambda text: text).encode_batch(["the cat"])
    with pytest.raises(SchemaError, match=r"expected token ids for each of 2 texts .* got 1"):
        adapter_of(lambda texts: [[1]], batched=True).encode_batch(["a", "b"])
    with pytest.raises(ArgumentError, match="expected a tokenizer: one of tokenizers, transformers"):
        adapter_of(17)
    with pytest.raises(ArgumentError, match="expected batched=True with a function only"):
        adapter_of(bpe(), batched=True)


def test_tokenizer_of_transformers_with_its_own_way_to_encode() -> None:
    from transformers import PreTrainedTokenizerFast

    class Upper(PreTrainedTokenizerFast):
        def _encode_plus(self, text: Any, *arguments: Any, **options: Any) -> Any:
            return super()._encode_plus([one.upper() for one in text], *arguments, **options)

    make: Any = Upper
    adapter = adapter_of(make(tokenizer_object=bpe(), eos_token=END))
    assert isinstance(adapter, TransformersAdapter)
    assert ids_of(adapter, ["the"]) == [expected_ids("tokenizers", bpe(), "THE")]
    assert adapter.eos == 0
    before = function_fingerprint(adapter)
    adapter.encode_batch(documents(5))
    assert function_fingerprint(adapter) == before


def test_tokenizer_of_transformers_in_python() -> None:
    import transformers

    make: Any = transformers.ByT5Tokenizer
    tokenizer = make()
    adapter = adapter_of(tokenizer)
    before = function_fingerprint(adapter)
    assert ids_of(adapter, ["ab", "ä", ""]) == tokenizer(["ab", "ä", ""], add_special_tokens=False)["input_ids"]
    assert (adapter.eos, adapter.pad, adapter.token_id("</s>"), adapter.token_text(100)) == (1, 0, 1, "a")
    tokenizer("a" * 10_000)
    again = pickle.loads(pickle.dumps(adapter))
    assert function_fingerprint(adapter_of(tokenizer)) == function_fingerprint(again) == before
    assert again.describe() == adapter.describe()


def test_results_that_change_are_refused() -> None:
    tokenizer = bpe()
    tokenizer.model.dropout = 0.1
    with pytest.raises(ArgumentError, match=r"always returns the same ids, got dropout=0\.1"):
        adapter_of(tokenizer)
    with pytest.raises(ArgumentError, match="got enable_sampling=True"):
        adapter_of(sentencepiece_processor(enable_sampling=True, alpha=0.1, nbest_size=-1))


def test_parts_in_python_are_refused() -> None:
    from tokenizers import pre_tokenizers

    class Own:
        def pre_tokenize(self, text: Any) -> None: ...

    tokenizer = bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(Own())
    with pytest.raises(ArgumentError, match="expected a tokenizer that can be stored as JSON"):
        adapter_of(tokenizer)


@pytest.mark.parametrize("kind", ["transformers", "tiktoken"])
def test_methods_that_encode_one_text_encode_many(kind: str) -> None:
    tokenizer, texts = tokenizer_of(kind), documents(20)
    encode = tokenizer.encode if kind == "transformers" else tokenizer.encode_ordinary
    adapter = adapter_of_function(encode)
    assert isinstance(adapter, TokenizersAdapter | TiktokenAdapter)
    assert ids_of(adapter, texts) == [encode(text) for text in texts]


def test_other_functions_are_called_for_each_text() -> None:
    from transformers import PreTrainedTokenizerFast

    class Own(PreTrainedTokenizerFast):
        def encode(self, text: Any, *arguments: Any, **options: Any) -> Any:
            return [len(text)]

    make: Any = Own
    own, random = make(tokenizer_object=bpe(), eos_token=END), bpe()
    random.model.dropout = 0.1
    plain: Any = PreTrainedTokenizerFast
    functions = (own.encode, plain(tokenizer_object=random).encode, tokenizer_of("tiktoken").encode, len)
    assert [type(adapter_of_function(function)) for function in functions] == [FunctionAdapter] * 4
    assert ids_of(adapter_of_function(own.encode), ["abc"]) == [[3]]
