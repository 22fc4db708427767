"""Conversations to tokens with a loss mask: `ChatEncoder` is what `tokenize` uses for a field of messages.

In: lists of messages (``{"role": ..., "content": ...}``), a tokenizer, a template, and which messages are trained on
(`TrainOn`). Out: ids, and for each token 1 if the loss counts it, else 0. `chat_templates` and `jinja_templates` turn a
conversation into text with the spans that are trained on; here the text becomes tokens. A token is trained on if its
first character is in such a span.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardex.errors import ArgumentError, SchemaError
from shardex.features import codecs
from shardex.kernel import MISSING, Columns, values_of
from shardex.layers import SampleFailure
from shardex.samples import Batch
from shardex.text.chat_templates import (
    BuiltInTemplate,
    ChatTemplate,
    FunctionTemplate,
    Message,
    RenderedChat,
    Span,
    built_in_named,
    describe_value,
)
from shardex.text.encode_documents import EncodedDocuments, cause_of, runs
from shardex.text.jinja_templates import JinjaTemplate
from shardex.text.tokenizer_adapter import Ids, JoinedIds, TokenizerAdapter

LOSS_MASK = "loss_mask"
"""Field with the mask."""
_NEAR_END = 3
"""Tokens before the end of a conversation in which templates write its end: whitespace may follow."""

Mask = NDArray[np.uint8]


def template_of(given: Any, adapter: TokenizerAdapter, *, tools: bool = False) -> ChatTemplate:
    """Return what the argument `template` means: a name, a Jinja template, a function, None for the tokenizer's.

    With `tools` it must have a place for them.
    """
    if given is None:
        if adapter.chat_template is None:
            raise ArgumentError(
                f"expected template= with the {adapter!r}, which has no chat template, got None; pass "
                'template="chatml", the text of a Jinja template, or a function of messages'
            )
        given = adapter.chat_template
    elif callable(given):
        return FunctionTemplate(given, tools)
    elif not isinstance(given, str):
        raise ArgumentError(
            "expected template= to be a name, the text of a Jinja template, a function of messages, or None for that "
            f"of the tokenizer, got {given!r:.200}"
        )
    elif not re.search(r"\{[{%]", given):
        named = built_in_named(given)
        if tools:
            raise ArgumentError(
                f'expected a template with tools=, which "{given}" has no place for, got it; pass the text of a Jinja '
                "template, or a function of messages and tools"
            )
        return named
    template = JinjaTemplate(given, dict(adapter.special_tokens))
    template.check()
    return template


# -- what is trained on ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrainOn:
    """Which messages are trained on: those of some roles, all, or those for which a function returns True.

    A message can say otherwise: with ``"train": false`` or ``"weight": 0`` it is not trained on, with ``"train": true``
    it is.
    """

    roles: tuple[str, ...] | None = None
    """Roles whose messages are trained on; None for all roles."""
    function: Callable[[Message], Any] | None = None

    @classmethod
    def of(cls, given: Any) -> TrainOn:
        """Read the argument `train_on`.

        >>> TrainOn.of("assistant").roles, TrainOn.of(["user", "assistant"]).roles, TrainOn.of("all").roles
        (('assistant',), ('user', 'assistant'), None)
        """
        if callable(given):
            return cls(None, given)
        if isinstance(given, str):
            return cls() if given == "all" else cls((given,))
        if isinstance(given, Sequence | set | frozenset) and given and all(isinstance(one, str) for one in given):
            return cls(tuple(sorted(given) if isinstance(given, set | frozenset) else given))
        raise ArgumentError(
            'expected train_on= to be roles such as ("assistant",), "all", or a function of a message, got '
            f"{given!r:.200}"
        )

    def describe(self) -> Any:
        """Return what is stored with the data."""
        if self.function is not None:
            return f"function {getattr(self.function, '__qualname__', type(self.function).__qualname__)}"
        return "all" if self.roles is None else list(self.roles)

    def __call__(self, message: Message) -> bool:
        """Return whether a message is trained on."""
        train, weight = message.get("train"), message.get("weight")
        if train is not None and (isinstance(train, str) or train not in (0, 1)):
            raise SchemaError(f'expected true or false for "train", got {describe_value(train)}')
        if weight is not None and (isinstance(weight, str) or weight not in (0, 1)):
            raise SchemaError(f'expected 0 or 1 for "weight", because a mask has no other values, got {weight!r:.200}')
        if weight == 0 or train is not None:
            return bool(train) and weight != 0
        if self.function is not None:
            return bool(self.function(message))
        return self.roles is None or message["role"] in self.roles


class _Decision:
    """Which messages of one conversation are trained on."""

    def __init__(self, messages: Sequence[Message], train_on: TrainOn) -> None:
        self._messages, self._train_on = messages, train_on
        self.trained = [self._of(number) for number in range(len(messages))]

    def _of(self, number: int) -> bool:
        try:
            return self._train_on(self._messages[number])
        except SchemaError as error:
            raise SchemaError(f"{error} - at message {number}") from None

    def of_role(self, role: str, text: str) -> bool:
        found = {train for message, train in zip(self._messages, self.trained, strict=True) if message["role"] == role}
        if len(found) == 2:
            raise SchemaError(
                f"expected a template that returns (text, message) instead of (text, {role!r}), because some messages "
                "of this role are trained on and some are not"
            )
        return found.pop() if found else self._train_on({"role": role, "content": text})


# -- messages -------------------------------------------------------------------------------------------------


def _checked(value: Any) -> list[Message]:
    """Return a conversation as a list of new dicts, without keys that have no value."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        raise SchemaError(f"expected a list of messages, got {describe_value(value)}")
    if not value:
        raise SchemaError("expected at least one message, got an empty list")
    return [_checked_message(one, number) for number, one in enumerate(value)]


def _checked_message(given: Any, number: int) -> Message:
    if not isinstance(given, Mapping):
        raise SchemaError(
            f'expected a message with "role" and "content", got {describe_value(given)} - at message {number}'
        )
    message = {name: value for name, value in given.items() if value is not None}
    role = message.get("role")
    if not isinstance(role, str):
        found = describe_value(role) if "role" in given else f"the keys {', '.join(map(str, given))}"
        raise SchemaError(f'expected "role" as text, got {found} - at message {number}')
    content = message.get("content")
    if content is None and ("tool_calls" in message or "function_call" in message):
        return {**message, "content": None}  # a call has no content; templates in Jinja know this
    if not isinstance(content, str):
        found = describe_value(content) if "content" in given else f"the keys {', '.join(map(str, given))}"
        raise SchemaError(f'expected "content" as text, got {found} - at message {number}')
    return message


def _checked_tools(value: Any) -> list[Any] | None:
    """Return the tools of a conversation; None if it has none. Datasets store them as lists or as JSON in a text."""
    if isinstance(value, str):
        value = codecs.JSON.decode(value.encode()) if value else None
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if value is None or value is MISSING:
        return None
    if not isinstance(value, list | tuple) or not all(isinstance(one, Mapping) for one in value):
        raise SchemaError(f"expected a list of tools, each a JSON object, got {describe_value(value)}")
    return list(value) or None


# -- encoding -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChatEncoder:
    """Encodes the conversations of one field, with a token before and after each if `bos` and `eos` are given."""

    adapter: TokenizerAdapter
    field: str
    template: ChatTemplate
    train_on: TrainOn
    bos: int | None = None
    eos: int | None = None
    tools: str | None = None
    """Field of the tools that each conversation may call."""

    @property
    def fields(self) -> Sequence[str]:
        """The field of the messages, and that of the tools."""
        return (self.field,) if self.tools is None else (self.field, self.tools)

    @property
    def arrays(self) -> Mapping[str, str]:
        """The array of the loss mask."""
        return {LOSS_MASK: "uint8"}

    def describe(self) -> dict[str, Any]:
        """Return the options that are stored with the data."""
        tools = {} if self.tools is None else {"tools_field": self.tools}
        return {"template": self.template.describe(), "train_on": self.train_on.describe(), **tools}

    def doubts(self, columns: Columns) -> Iterator[str]:
        """Yield a warning for each likely mistake that these conversations show."""
        values = values_of(columns.data[self.field])
        special = self.template.special_tokens if isinstance(self.template, BuiltInTemplate) else ()
        unknown = [one for one in special if self.adapter.token_id(one) is None]
        if unknown and self.adapter.kind != "function":
            yield (
                f"the {self.adapter!r} has no special tokens {', '.join(unknown)}, so those of the template "
                f'"{self.template.describe()}" become several tokens of ordinary text; add them to the tokenizer'
            )
        messages = [message for value in values for message in _checked(value)]
        if messages and not any(map(self.train_on, messages)):
            roles = ", ".join(dict.fromkeys(message["role"] for message in messages))
            yield (
                f"no token of the first conversations counts for the loss: train_on={self.train_on.describe()!r}, and "
                f"the roles of their messages are {roles}"
            )
        found = self(Batch(columns))
        ids = [one.tolist() for one in np.split(found.values, found.offsets[1:-1])]
        for argument, number, others in (
            ("bos", self.bos, [one[1:2] for one in ids]),
            ("eos", self.eos, [one[-1 - _NEAR_END : -1] for one in ids]),
        ):
            if number is not None and all(number in some for some in others):
                yield (
                    f"the template writes the token {number} itself, which {argument}= adds, so that conversations "
                    f"have it twice; leave {argument}= out"
                )

    def __call__(self, batch: Batch[Any]) -> EncodedDocuments:
        """Encode the conversations, some at a time if they are long."""
        values = values_of(batch.columns.data[self.field])
        tools = [None] * len(values) if self.tools is None else values_of(batch.columns.data[self.tools])
        control = _pattern(tuple(self.adapter.control_tokens))
        chats: list[RenderedChat] = []
        ends: list[bool] = []
        for number, value in enumerate(values):
            try:
                messages = _checked(value)
                decision = _Decision(messages, self.train_on)
                chats.append(self.template.render(messages, decision, control, _checked_tools(tools[number])))
            except Exception as error:
                raise SampleFailure(number, error) from error
            ends.append(decision.trained[-1])
        joined, masks = JoinedIds(self.bos, self.eos), [np.zeros(0, np.uint8)]
        at_begin, at_end = int(self.bos is not None), int(self.eos is not None)
        for begin, end in runs([chat.text for chat in chats]):
            for (ids, mask), trained in zip(self._encoded(chats[begin:end], begin), ends[begin:end], strict=True):
                joined.extend([ids])
                masks += [np.zeros(at_begin, np.uint8), mask, np.full(at_end, trained, np.uint8)]
        return EncodedDocuments(joined.values, joined.offsets, {LOSS_MASK: np.concatenate(masks)})

    def _encoded(self, chats: Sequence[RenderedChat], first: int) -> list[tuple[Ids, Mask]]:
        """Encode conversations; an error names the one that it is about."""
        try:
            return encode_chats(self.adapter, chats)
        except Exception:
            for number, chat in enumerate(chats):
                try:
                    encode_chats(self.adapter, [chat])
                except Exception as alone:
                    raise SampleFailure(first + number, cause_of(alone, chat.text)) from alone
            raise


def encode_chats(adapter: TokenizerAdapter, chats: Sequence[RenderedChat]) -> list[tuple[Ids, Mask]]:
    """Return ids and mask of each conversation.

    A tokenizer that tells where tokens are in a text gets the whole text. Another one gets it in pieces that are wholly
    trained on or not, and so does every tokenizer if the template says so. Text of special tokens that comes from
    messages is always a piece of its own.
    """
    tells = adapter.encode_with_offsets([]) is not None
    pieces = [one for number, chat in enumerate(chats) for one in _pieces(number, chat, chat.in_pieces or not tells)]
    found: dict[_Part, tuple[Ids, Mask]] = {}
    for ordinary in (False, True):
        chosen = [piece for piece in pieces if piece.ordinary == ordinary]
        texts = [chats[one.chat].text[one.begin : one.end] for one in chosen]
        located = adapter.encode_with_offsets(texts) if tells and texts and not ordinary else None
        if located is not None:
            for one, (ids, offsets) in zip(chosen, located, strict=True):
                found[one] = ids, _mask(chats[one.chat].trained, offsets[:, 0] + one.begin)
        elif texts:
            for one, ids in zip(chosen, adapter.encode_pieces(texts, control=not ordinary), strict=True):
                trained = _mask(chats[one.chat].trained, np.array([one.begin]))
                found[one] = ids, np.repeat(trained, len(ids))
    results: list[list[tuple[Ids, Mask]]] = [[] for _ in chats]
    for one in pieces:
        results[one.chat].append(found[one])
    return [_joined(parts) for parts in results]


@dataclass(frozen=True)
class _Part:
    """A part of the text of a conversation that is encoded at once."""

    chat: int
    begin: int
    end: int
    ordinary: bool
    """Texts of special tokens in it stay text."""


def _pieces(number: int, chat: RenderedChat, at_trained: bool) -> Iterator[_Part]:
    """Cut a conversation around texts of special tokens in messages, and where the mask changes if `at_trained`."""
    if not chat.ordinary and not (at_trained and chat.trained):
        if chat.text:
            yield _Part(number, 0, len(chat.text), False)
        return
    spans: list[Span] = [*chat.ordinary, *(chat.trained if at_trained else ())]
    cuts = sorted({0, len(chat.text), *(edge for span in spans for edge in span)})
    ends, ordinary_until = dict(chat.ordinary), 0
    for begin, end in pairwise(cuts):
        ordinary_until = ends.get(begin, ordinary_until)
        yield _Part(number, begin, end, begin < ordinary_until)


def _mask(trained: Sequence[Span], begins: NDArray[np.int64]) -> Mask:
    """Return 1 for each character that is in one of the spans.

    >>> _mask([(1, 3), (5, 6)], np.arange(7)).tolist()
    [0, 1, 1, 0, 0, 1, 0]
    """
    edges = np.array(trained, np.int64).ravel()
    return (np.searchsorted(edges, begins, "right") & 1).astype(np.uint8)


def _joined(parts: Sequence[tuple[Ids, Mask]]) -> tuple[Ids, Mask]:
    if len(parts) == 1:
        return parts[0]
    ids = [one for some, _ in parts for one in some]
    return ids, np.concatenate([np.zeros(0, np.uint8), *(mask for _, mask in parts)])


@lru_cache(16)
def _pattern(texts: tuple[str, ...]) -> re.Pattern[str] | None:
    """Return the pattern that matches texts of special tokens; None if there are none."""
    some = sorted(filter(None, texts))
    return re.compile(_any_of(some)) if some else None


def _any_of(texts: Sequence[str]) -> str:
    """Return a regular expression that matches the longest of several texts, hundreds of which may begin alike.

    >>> _any_of(["<a>", "<a>b", "<c>"])
    '<(?:a>b?|c>)'
    """
    rests: dict[str, list[str]] = {}
    for text in texts:
        rests.setdefault(text[:1], []).append(text[1:])
    parts = [re.escape(first) + _any_of(some) for first, some in rests.items() if first]
    if not parts:
        return ""
    shorter = "" in rests  # one of the texts ends here
    group = f"(?:{'|'.join(parts)})" if len(parts) > 1 or (shorter and len(parts[0]) > 1) else parts[0]
    return f"{group}?" if shorter else group
