"""Conversations, tokenizers with the special tokens of chat formats, and what a mask must be."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from shardex.kernel import Columns
from shardex.samples import Batch
from shardex.text.chat import LOSS_MASK, ChatEncoder, TrainOn, template_of
from shardex.text.tokenizers import adapter_of

START, END = "<|im_start|>", "<|im_end|>"
KINDS = ("tokenizers", "transformers", "slow", "tiktoken", "sentencepiece", "function")
CORPUS = ["hello there, how are you today? fine, thank you.\n\nuser assistant system", "the answer is: 42 é 😀\n"] * 20

CHATML = """
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""
"""The format "chatml" in Jinja."""
WITH_BLOCKS = """
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['role'] == 'assistant' -%}
{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}
{%- else -%}{{ message['content'] + '<|im_end|>' }}{%- endif -%}
{{ '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""
"""The same with generation blocks."""


def chat(*contents: str, system: str | None = None) -> list[dict[str, Any]]:
    """Return a conversation of user and assistant in turn."""
    first = [] if system is None else [{"role": "system", "content": system}]
    return first + [{"role": ("user", "assistant")[k % 2], "content": one} for k, one in enumerate(contents)]


@cache
def bpe(trim_offsets: bool = True, size: int = 400) -> Any:
    """A byte-level BPE of the package tokenizers, with a post-processor as that of Llama 3."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[START, END, "<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(CORPUS, trainer)
    return made


def fast(template: str | None = CHATML, **options: Any) -> Any:
    """A fast tokenizer of transformers with a chat template."""
    import transformers

    kind: Any = transformers.PreTrainedTokenizerFast
    made = kind(tokenizer_object=bpe(), eos_token=END, pad_token="<|end|>", **options)
    made.chat_template = template
    return made


def slow() -> Any:
    """A tokenizer of transformers in Python, which needs no files."""
    import transformers

    kind: Any = transformers.ByT5Tokenizer
    return kind(extra_ids=0, additional_special_tokens=[START, END])


def tiktoken_encoding() -> Any:
    """An encoding of tiktoken with own ranks."""
    import tiktoken

    ranks = {bytes([number]): number for number in range(256)}
    for pair in (b"th", b"he", b"an", b"\n\n", b" t"):
        ranks[pair] = len(ranks)
    special = {START: len(ranks), END: len(ranks) + 1}
    return tiktoken.Encoding("own", pat_str=r"\s?\p{L}+|\s+|.", mergeable_ranks=ranks, special_tokens=special)


@cache
def _sentencepiece_model() -> bytes:
    import sentencepiece

    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=written,
        vocab_size=340,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=[START, END],
        hard_vocab_limit=False,
        minloglevel=3,
        num_threads=1,
    )
    return written.getvalue()


def sentencepiece_processor() -> Any:
    """A processor of sentencepiece with bytes for unknown characters."""
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_proto=_sentencepiece_model())


def utf8(text: str) -> list[int]:
    """A tokenizer that is a function."""
    return list(text.encode())


def tokenizer_of(kind: str) -> Any:
    """Return a tokenizer of a package."""
    makers: dict[str, Any] = {
        "tokenizers": bpe,
        "transformers": fast,
        "slow": slow,
        "tiktoken": tiktoken_encoding,
        "sentencepiece": sentencepiece_processor,
        "function": lambda: utf8,
    }
    return makers[kind]()


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return the text of ids."""
    if tokenizer is utf8:
        return bytes(ids).decode()
    if type(tokenizer).__name__ == "Tokenizer" or hasattr(tokenizer, "apply_chat_template"):
        return str(tokenizer.decode(list(ids), skip_special_tokens=False))
    return str(tokenizer.decode(list(ids)))


def encoder(
    tokenizer: Any,
    template: Any = "chatml",
    train_on: Any = ("assistant",),
    bos: int | None = None,
    eos: int | None = None,
) -> ChatEncoder:
    """Return the encoder of a field m."""
    adapter = adapter_of(tokenizer)
    return ChatEncoder(adapter, "m", template_of(template, adapter), TrainOn.of(train_on), bos, eos)


def encode(tokenizer: Any, chats: list[Any], *arguments: Any, **options: Any) -> list[tuple[list[int], list[int]]]:
    """Return ids and mask of each conversation; the other arguments are those of `encoder`."""
    found = encoder(tokenizer, *arguments, **options)(Batch(Columns({"m": chats}, len(chats))))
    mask, cuts = found.arrays[LOSS_MASK], found.offsets[1:-1]
    assert mask.dtype == np.uint8 and len(mask) == len(found.values)
    each = zip(np.split(found.values, cuts), np.split(mask, cuts), strict=True)
    return [(ids.tolist(), one.tolist()) for ids, one in each]


def trained_text(tokenizer: Any, ids: Sequence[int], mask: Sequence[int]) -> str:
    """Return the text of the tokens that the loss counts."""
    return decode(tokenizer, [one for one, count in zip(ids, mask, strict=True) if count])


def trained_texts(tokenizer: Any, messages: Any, *arguments: Any, **options: Any) -> list[str]:
    """Return the text of each run of tokens that the loss counts."""
    ((ids, mask),) = encode(tokenizer, [messages], *arguments, **options)
    edges = [k for k in range(len(mask) + 1) if mask[k - 1 : k] != mask[k : k + 1] or k in (0, len(mask))]
    return [decode(tokenizer, ids[a:b]) for a, b in pairwise(edges) if mask[a]]
