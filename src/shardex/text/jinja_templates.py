"""Chat templates in Jinja: renders conversations in a sandbox and finds the characters that count for the loss.

`JinjaTemplate` renders as `transformers` does. Where the template has ``{% generation %}`` blocks, these are the text
of assistant messages. Otherwise the text of a message is what the conversation gains by it: it is rendered up to the
message before, and up to this one. A template that changes earlier text afterwards cannot be used in this way, which
is an error. Marks are two characters that occur nowhere else; they show where in the text a part of a message is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from shardex.errors import ArgumentError, SchemaError
from shardex.text.chat_templates import Decision, Message, RenderedChat, Span

Marks = tuple[str, str]

_MARKS = "shardex_marks"
"""Variable with the marks of generation blocks."""
_FIRST_MARK = 0x100000
"""Marks are taken from the private use area that begins here."""
_WAY_OUT = "put {% generation %} blocks around the text of the assistant in the template, or pass a function"


@dataclass(frozen=True)
class JinjaTemplate:
    """A template as text, and variables such as `bos_token`."""

    text: str
    variables: Mapping[str, str]

    def check(self) -> None:
        """Raise an error if the template cannot be compiled."""
        _compiled(self.text)

    def describe(self) -> str:
        """Return the text."""
        return self.text

    def render(
        self, messages: Sequence[Message], decision: Decision, control: re.Pattern[str] | None, tools: Any = None
    ) -> RenderedChat:
        """Render a conversation; find what is trained on, and texts of special tokens in messages and tools."""
        return _Rendering(self, messages, tools).result(decision.trained, control)

    def text_of(self, messages: Sequence[Message], prompt: bool, marks: Marks | None = None, tools: Any = None) -> str:
        """Return the text of messages; with `prompt` also that which asks for an answer."""
        variables = {"documents": None, **self.variables, "tools": tools, _MARKS: marks}
        try:
            return str(_compiled(self.text).render(messages=messages, add_generation_prompt=prompt, **variables))
        except Exception as error:  # a template is code: what it raises can be anything
            told = f"{type(error).__name__}: {error}".rstrip(": ")
            if "strftime_now" in told:
                told += "; put a fixed date into the template, so that tokens do not depend on the day"
            raise SchemaError(
                f"expected a conversation that the chat template accepts, got {told} - in the messages up to "
                f"{len(messages) - 1}"
            ) from error


class _Rendering:
    """One conversation in one template."""

    def __init__(self, template: JinjaTemplate, messages: Sequence[Message], tools: Any) -> None:
        self._template, self._messages, self._tools = template, messages, tools
        self._texts: dict[int, str] = {}
        self._full = self._up_to(len(messages))
        self._marks = _unused_marks(self._full)

    def result(self, trained: Sequence[bool], control: re.Pattern[str] | None) -> RenderedChat:
        ordinary = self._ordinary(control) if control is not None else []
        spans = self._generated(trained) if any(trained) and _has_generation(self._template.text) else None
        if spans is None:
            spans = [self._of_message(number) for number, train in enumerate(trained) if train]
        return RenderedChat(self._full, _merged(spans), ordinary)

    def _up_to(self, count: int) -> str:
        """Return the text of the first messages."""
        if count not in self._texts:
            self._texts[count] = self._text(self._messages[:count]) if count else ""
        return self._texts[count]

    def _text(self, messages: Sequence[Message], prompt: bool = False, marks: Marks | None = None) -> str:
        return self._template.text_of(messages, prompt, marks, self._tools)

    # -- texts of special tokens in messages and tools --

    def _ordinary(self, control: re.Pattern[str]) -> list[Span]:
        begin, end = self._marks

        def marked(found: re.Match[str]) -> str:
            return begin + found[0] + end

        for number, message in enumerate(self._messages):
            if control.search(message["role"]):
                raise SchemaError(
                    f"expected a role without special tokens, got {message['role']!r:.200} - at message {number}"
                )
        changed = [
            {k: v if k == "role" else _replaced(v, control, marked) for k, v in m.items()} for m in self._messages
        ]
        tools = _replaced(self._tools, control, marked)
        if changed == list(self._messages) and tools == self._tools:
            return []
        text, spans = _unmarked(self._template.text_of(changed, False, None, tools), *self._marks)
        if text != self._full:
            first = next(
                (n for n, (old, new) in enumerate(zip(self._messages, changed, strict=True)) if old != new), -1
            )
            if first < 0:
                raise SchemaError(
                    "expected tools without the text of special tokens, because the chat template does not keep it as "
                    f"it is, got {_first_match(self._tools, control)!r}"
                )
            raise SchemaError(
                "expected messages without the text of special tokens, because the chat template does not keep it as "
                f"it is, got {_first_match(self._messages[first], control)!r} - at message {first}"
            )
        return spans

    # -- generation blocks --

    def _generated(self, trained: Sequence[bool]) -> list[Span] | None:
        """Return the blocks of messages that are trained on; None if it is not clear whose blocks they are."""
        answers = [number for number, message in enumerate(self._messages) if message["role"] == "assistant"]
        if any(train and number not in answers for number, train in enumerate(trained)):
            return None
        blocks = self._blocks(len(self._messages))
        if all(trained[number] for number in answers):
            return blocks if len(blocks) == len(answers) or self._only_in(answers) else None
        for count, number in enumerate(answers, 1):  # else one block for each answer, in their order
            if len(self._blocks(number + 1)) != count:
                return None
        kept = [block for block, number in zip(blocks, answers, strict=False) if trained[number]]
        return kept if len(blocks) == len(answers) else None

    def _only_in(self, answers: Sequence[int]) -> bool:
        """Return True if messages that are no answers add no blocks."""
        count = 0
        for number in range(len(self._messages)):
            try:
                found = len(self._blocks(number + 1))
            except SchemaError:  # a template may refuse a conversation that ends here
                continue
            if found > count and number not in answers:
                return False
            count = found
        return True

    def _blocks(self, count: int) -> list[Span]:
        marked = self._text(self._messages[:count], marks=self._marks)
        text, spans = _unmarked(marked, *self._marks)
        if text != self._up_to(count):
            raise SchemaError(
                "expected {% generation %} blocks whose text the chat template writes as it is, got one whose text it "
                f"changes - in the messages up to {count - 1}"
            )
        return spans

    # -- text that a message adds --

    def _of_message(self, number: int) -> Span:
        """Return the span of what the author of a message writes: without the header, with the end of the turn."""
        before, after = self._up_to(number), self._up_to(number + 1)
        if not (self._full.startswith(after) and after.startswith(before)):
            raise self._changing(number, "the text up to a message depends on the messages after it")
        probe = self._probe(number)
        begin_mark, end_mark = self._marks
        first, last = probe.find(begin_mark), probe.rfind(end_mark)
        begin = self._after_prompt(number)
        if begin is None:
            if first < 0 or not (probe.startswith(before) and after.startswith(probe[:first])):
                raise self._changing(number, "the text before the content of a message depends on the content")
            begin = first
        while begin > len(before) and after[begin - 1] == " ":  # tokenizers put a space into the token after it
            begin -= 1
        tail = probe[last + 1 :] if last >= 0 else ""
        end = len(after) - len(tail) + len(tail.rstrip() or tail)
        if not after.endswith(tail) or end < begin:
            raise self._changing(number, "the text after the content of a message depends on the content")
        return begin, end

    def _probe(self, number: int) -> str:
        """Return the text up to a message whose content is an x between marks."""
        changed: Message = {**self._messages[number], "content": "x".join(self._marks)}
        return self._text([*self._messages[:number], changed])

    def _after_prompt(self, number: int) -> int | None:
        """Return where an answer begins: after the text that asks for it; None if the template has no such text."""
        if not number or self._messages[number]["role"] != "assistant":
            return None
        if "add_generation_prompt" not in self._template.text:
            return None
        prompt = self._text(self._messages[:number], prompt=True)
        asks = len(prompt) > len(self._up_to(number)) and self._up_to(number + 1).startswith(prompt)
        return len(prompt) if asks and prompt.startswith(self._up_to(number)) else None

    def _changing(self, number: int, how: str) -> SchemaError:
        return SchemaError(
            "expected a chat template that adds text for each message and leaves the text before it as it is, to find "
            f"the tokens of a message, got one in which {how}; {_WAY_OUT} - at message {number}"
        )


# -- marks ----------------------------------------------------------------------------------------------------


def _unused_marks(text: str) -> Marks:
    """Return two characters that do not occur in a text."""
    found: list[str] = []
    code = _FIRST_MARK
    while len(found) < 2:
        if chr(code) not in text:
            found.append(chr(code))
        code += 1
    return found[0], found[1]


def _unmarked(marked: str, begin: str, end: str) -> tuple[str, list[Span]]:
    """Return a text without marks, and the spans that were between them; of spans in spans, the outer ones.

    >>> _unmarked("a[b]c[][[d]]", "[", "]")
    ('abcd', [(1, 2), (3, 3), (3, 4)])
    """
    texts: list[str] = []
    spans: list[Span] = []
    open_spans: list[int] = []
    length = 0
    for part in re.split(f"([{re.escape(begin + end)}])", marked):
        if part == begin:
            open_spans.append(length)
        elif part == end and open_spans:
            first = open_spans.pop()
            spans += [] if open_spans else [(first, length)]
        else:  # an end without a begin stays in the text, which then differs from the one without marks
            texts.append(part)
            length += len(part)
    return "".join(texts) + begin * len(open_spans), spans


def _merged(spans: Sequence[Span]) -> list[Span]:
    """Return spans without empty ones, neighbours as one."""
    merged: list[Span] = []
    for begin, end in spans:
        if merged and merged[-1][1] >= begin:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        elif end > begin:
            merged.append((begin, end))
    return merged


def _replaced(value: Any, pattern: re.Pattern[str], change: Callable[[re.Match[str]], str]) -> Any:
    """Return a value in which all texts are changed where a pattern matches."""
    if isinstance(value, str):
        return pattern.sub(change, value)
    if isinstance(value, Mapping):
        return {_replaced(k, pattern, change): _replaced(v, pattern, change) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(one, pattern, change) for one in value]
    return value


def _first_match(value: Any, pattern: re.Pattern[str]) -> str:
    found: list[str] = []
    _replaced(value, pattern, lambda match: found.append(match[0]) or "")  # type: ignore[func-returns-value]
    return found[0]


# -- Jinja ----------------------------------------------------------------------------------------------------


@lru_cache(64)
def _has_generation(text: str) -> bool:
    return re.search(r"\{%-?\+?\s*generation\s*[-+]?%\}", text) is not None


@lru_cache(64)
def _compiled(text: str) -> Any:
    """Compile a template for the sandbox: it cannot reach files, modules or attributes of Python objects."""
    try:
        import jinja2
        from jinja2 import ext, nodes, sandbox
    except ImportError as error:
        raise ArgumentError(
            'expected the package jinja2 for a chat template in Jinja, it is not installed: pip install "jinja2>=3.1"; '
            'or pass template="chatml" or a function'
        ) from error

    class Generation(ext.Extension):
        """The tag ``{% generation %}``: its text is put between marks if there are any."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            call = self.call_method("_marked", [nodes.ContextReference()])
            return nodes.CallBlock(call, [], [], body).set_lineno(line)

        @staticmethod
        def _marked(context: Any, caller: Callable[[], str]) -> str:
            marks = context.get(_MARKS)
            return f"{marks[0]}{caller()}{marks[1]}" if marks else caller()

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    extensions = [ext.loopcontrols, Generation]
    environment = sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = raise_exception
    try:
        return environment.from_string(text)
    except jinja2.TemplateSyntaxError as error:
        raise ArgumentError(f"expected a Jinja template in template=, got {error} in line {error.lineno}") from None


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON with all characters as they are: not escaped for HTML, as Jinja would do it."""
    options: dict[str, Any] = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)
