"""Conversations to one text: which characters count for the loss, and which must not become special tokens.

A `ChatTemplate` turns messages into a `RenderedChat`. Here are those that put pieces of text together, whose borders
are known: the built-in formats (`BUILT_IN`) and functions of the user (`FunctionTemplate`). `jinja_templates` has those
in Jinja; `chat` checks messages, decides which are trained on, and turns the text into tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from shardex.errors import ArgumentError, SchemaError
from shardex.features import describe

Message = dict[str, Any]
"""One message: `role`, `content`, and keys that templates may use."""
Span = tuple[int, int]
"""First character and end of a part of a text."""


@dataclass(frozen=True)
class RenderedChat:
    """The text of a conversation, the spans of it that count for the loss, and those that hold no special tokens.

    Spans are in order and do not overlap.
    """

    text: str
    trained: Sequence[Span]
    ordinary: Sequence[Span] = ()
    """Text of special tokens that comes from messages: it is encoded as ordinary text."""
    in_pieces: bool = False
    """The text is encoded in pieces that are wholly trained on or not, also if the tokenizer tells where tokens are."""


class Decision(Protocol):
    """Says which messages of a conversation are trained on."""

    @property
    def trained(self) -> Sequence[bool]:
        """For each message whether it is trained on."""

    def of_role(self, role: str, text: str) -> bool:
        """Return whether a text of a role is trained on; an error if messages of this role differ."""


class ChatTemplate(Protocol):
    """Turns messages into text; it is picklable, and equal ones have equal fingerprints."""

    def render(
        self, messages: Sequence[Message], decision: Decision, control: re.Pattern[str] | None, tools: Any = None
    ) -> RenderedChat:
        """Return the text of a conversation; `control` matches special tokens, `tools` are those it may call."""

    def describe(self) -> str:
        """Return what is stored with the data: a name, or the text of the template."""


@dataclass(frozen=True)
class _Piece:
    text: str
    trained: bool = False
    control: bool = True
    """Texts of special tokens in this piece are special tokens."""


def _joined(pieces: Iterable[_Piece], control: re.Pattern[str] | None) -> RenderedChat:
    """Put pieces together.

    >>> _joined([_Piece("a"), _Piece("b</s>", True, False), _Piece("</s>", True)], re.compile("</s>"))
    RenderedChat(text='ab</s></s>', trained=[(1, 10)], ordinary=[(2, 6)], in_pieces=False)
    """
    texts: list[str] = []
    trained: list[Span] = []
    ordinary: list[Span] = []
    begin = 0
    for piece in pieces:
        end = begin + len(piece.text)
        if piece.trained and end > begin:
            if trained and trained[-1][1] == begin:
                trained[-1] = trained[-1][0], end
            else:
                trained.append((begin, end))
        if control is not None and not piece.control:
            ordinary += [(begin + found.start(), begin + found.end()) for found in control.finditer(piece.text)]
        texts.append(piece.text)
        begin = end
    return RenderedChat("".join(texts), trained, ordinary)


def text_of(message: Message, number: int) -> str:
    """Return the content of a message, which must be text."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    raise SchemaError(f"expected text as the content of message {number}, got {describe_value(content)}")


def describe_value(value: Any) -> str:
    """Describe a value for messages of errors."""
    return "none" if value is None else describe(value)


# -- built-in formats -----------------------------------------------------------------------------------------


def _chatml(messages: Sequence[Message], trained: Sequence[bool]) -> Iterator[_Piece]:
    for number, (message, train) in enumerate(zip(messages, trained, strict=True)):
        yield _Piece("<|im_start|>")
        yield _Piece(message["role"], control=False)
        yield _Piece("\n")
        yield _Piece(text_of(message, number), train, control=False)
        yield _Piece("<|im_end|>", train)
        yield _Piece("\n")


def _llama3(messages: Sequence[Message], trained: Sequence[bool]) -> Iterator[_Piece]:
    yield _Piece("<|begin_of_text|>")
    for number, (message, train) in enumerate(zip(messages, trained, strict=True)):
        yield _Piece("<|start_header_id|>")
        yield _Piece(message["role"], control=False)
        yield _Piece("<|end_header_id|>\n\n")
        yield _Piece(text_of(message, number).strip(), train, control=False)
        yield _Piece("<|eot_id|>", train)


BUILT_IN: Mapping[str, Callable[[Sequence[Message], Sequence[bool]], Iterator[_Piece]]] = {
    "chatml": _chatml,
    "llama3": _llama3,
}
"""Formats by name. The end of a turn is trained on with its content, the header of a turn never."""
_SPECIAL = {
    "chatml": ("<|im_start|>", "<|im_end|>"),
    "llama3": ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
}


@dataclass(frozen=True)
class BuiltInTemplate:
    """A format that has a name."""

    name: str

    def render(
        self, messages: Sequence[Message], decision: Decision, control: re.Pattern[str] | None, tools: Any = None
    ) -> RenderedChat:
        """Put the parts of the format together; it has no place for tools, which `tokenize` checks."""
        return _joined(BUILT_IN[self.name](messages, decision.trained), control)

    def describe(self) -> str:
        """Return the name."""
        return self.name

    @property
    def special_tokens(self) -> Sequence[str]:
        """Special tokens of the format."""
        return _SPECIAL[self.name]


# -- functions ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FunctionTemplate:
    """A function of the messages that returns pieces of text: (text, role), (text, message) or (text, None).

    If conversations have tools, these are its second argument.
    """

    function: Callable[..., Iterable[Any]]
    with_tools: bool = False

    def render(
        self, messages: Sequence[Message], decision: Decision, control: re.Pattern[str] | None, tools: Any = None
    ) -> RenderedChat:
        """Call the function and put its pieces together."""
        given = list(messages)
        result = self.function(given, tools) if self.with_tools else self.function(given)
        if isinstance(result, str | Mapping) or not isinstance(result, Iterable):
            raise self._wrong("a list of pieces", result)
        numbers = {id(message): number for number, message in enumerate(messages)}
        made = _joined([self._piece(one, decision, numbers) for one in result], control)
        return replace(made, in_pieces=True)  # the borders are as the function says, whatever the tokenizer would do

    def _piece(self, given: Any, decision: Decision, numbers: Mapping[int, int]) -> _Piece:
        if not isinstance(given, tuple | list) or len(given) not in (2, 3) or not isinstance(given[0], str):
            raise self._wrong("pieces (text, role)", given)
        text, whose, *special = given
        if special and not isinstance(special[0], bool):
            raise self._wrong("True or False as the third item of a piece (special tokens)", special[0])
        if whose is None:
            train = False
        elif isinstance(whose, str):
            train = decision.of_role(whose, text)
        elif id(whose) in numbers:
            train = decision.trained[numbers[id(whose)]]
        else:
            raise self._wrong("a role, one of the given messages, or None as the second item of a piece", whose)
        return _Piece(text, train, special[0] if special else True)

    def _wrong(self, expected: str, found: Any) -> SchemaError:
        return SchemaError(f"expected {expected} from the template {self.describe()}, got {describe_value(found)}")

    def describe(self) -> str:
        """Return the name of the function."""
        named = getattr(self.function, "__qualname__", type(self.function).__qualname__)
        return f"function {named}"


def built_in_named(name: str) -> BuiltInTemplate:
    """Return a built-in format, or raise an error with the names that there are."""
    if name in BUILT_IN:
        return BuiltInTemplate(name)
    listed = ", ".join(f'"{one}"' for one in BUILT_IN)
    raise ArgumentError(
        f"expected template= to be one of {listed}, the text of a Jinja template, or a function of messages, got "
        f"{name!r:.200}; read a template from a file with open(path).read()"
    )
