"""Documents and tokenizers of each package, small enough to be made in a test."""

from __future__ import annotations

import io
import random
from functools import cache
from typing import Any

WORDS = ("the", "of", "and", "to", "in", "a", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not")
END = "<|end|>"
KINDS = ("tokenizers", "transformers", "tiktoken", "sentencepiece")


def documents(count: int, seed: int = 0) -> list[str]:
    """Texts of varying length, some empty, some with characters of several bytes."""
    chosen = random.Random(seed)
    texts = [" ".join(chosen.choices(WORDS, k=chosen.randrange(0, 30))) for _ in range(count)]
    return [f"{text} ä€😀" if number % 7 == 3 else text for number, text in enumerate(texts)]


def bpe(end: str = END, size: int = 400) -> Any:
    """A byte-level BPE of the package tokenizers."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[end, "<|begin|>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(documents(200), trainer)
    return made


def fast(**options: Any) -> Any:
    """A fast tokenizer of transformers."""
    import transformers

    make: Any = transformers.PreTrainedTokenizerFast
    return make(tokenizer_object=bpe(), eos_token=END, bos_token="<|begin|>", pad_token=END, **options)


def tiktoken_encoding(name: str = "own") -> Any:
    """An encoding of tiktoken with ranks of bytes and some pairs."""
    import tiktoken

    ranks = {bytes([number]): number for number in range(256)}
    for pair in (b"th", b"in", b"an", b"he", b"at"):
        ranks[pair] = len(ranks)
    special = {"<|endoftext|>": len(ranks)}
    return tiktoken.Encoding(name, pat_str=r"\s?\p{L}+|\s+|.", mergeable_ranks=ranks, special_tokens=special)


@cache
def sentencepiece_model() -> bytes:
    """The bytes of a sentencepiece model."""
    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(documents(300)),
        model_writer=written,
        vocab_size=90,
        hard_vocab_limit=False,
        minloglevel=3,
        num_threads=1,
    )
    return written.getvalue()


def sentencepiece_processor(**options: Any) -> Any:
    """A processor of sentencepiece."""
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model(), **options)


def tokenizer_of(kind: str) -> Any:
    """A tokenizer of each package."""
    made: dict[str, Any] = {
        "tokenizers": bpe,
        "transformers": fast,
        "tiktoken": tiktoken_encoding,
        "sentencepiece": sentencepiece_processor,
    }
    return made[kind]()


def expected_ids(kind: str, tokenizer: Any, text: str) -> list[int]:
    """Ids of a text by the documented call of each package."""
    if kind == "tokenizers":
        return list(tokenizer.encode(text, add_special_tokens=False).ids)
    if kind == "transformers":
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    if kind == "tiktoken":
        return list(tokenizer.encode_ordinary(text))
    return list(tokenizer.encode(text, out_type=int))
