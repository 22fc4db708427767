"""Chat templates in Jinja: what counts for the loss is found exactly, or there is an error that says why not."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from shardex.errors import ArgumentError
from shardex.layers import SampleFailure
from shardex.text.jinja_templates import _compiled
from tests.text.conversations import END, WITH_BLOCKS, bpe, chat, decode, encode, fast, trained_texts, utf8

TURNS = chat("hello", "fine", "and?", "the answer")


def each(body: str, after: str = "") -> str:
    return "{% for m in messages %}" + body + "{% endfor %}" + after


# -- what a message adds --------------------------------------------------------------------------------------


def test_a_space_before_an_answer_belongs_to_its_first_token() -> None:
    lines = each("{{ m.role }}: {{ m.content }}\n")
    inst = each(
        "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}<|im_end|>{% endif %}"
    )
    asked = each("{{ m.role }}: {{ m.content }}<|im_end|>", "{% if add_generation_prompt %}assistant: {% endif %}")
    for tokenizer in (bpe(), utf8):
        assert trained_texts(tokenizer, TURNS, lines) == [" fine\n", " the answer\n"]
        assert trained_texts(tokenizer, TURNS, inst) == [f" fine{END}", f" the answer{END}"]
        assert trained_texts(tokenizer, TURNS, asked) == [f" fine{END}", f" the answer{END}"]


def test_whitespace_after_the_end_of_a_turn_is_not_trained_on() -> None:
    template = each("{{ m.role }}\n{{ m.content }}</s> \n\n")
    assert trained_texts(utf8, chat("a", "b \n", "c", ""), template) == ["b \n</s>", "</s>"]


def test_content_that_a_template_trims_or_that_looks_like_a_header() -> None:
    template = each("<{{ m.role }}>{{ m.content | trim }}</s>")
    assert trained_texts(utf8, chat(" a", " b\n", "c", "  "), template) == ["b</s>", "</s>"]
    messages = chat("<assistant>", "<assistant>", "assistant", "</s>")
    assert trained_texts(utf8, messages, template) == ["<assistant></s>", "</s></s>"]


def test_text_before_the_content_of_an_answer_is_trained_on_after_the_prompt() -> None:
    body = "<{{ m.role }}>{% if m.thoughts %}({{ m.thoughts }}){% endif %}{{ m.content }}</s>"
    messages: list[Any] = chat("a", "b")
    messages[1]["thoughts"] = "why"
    asked = each(body, "{% if add_generation_prompt %}<assistant>{% endif %}")
    assert trained_texts(utf8, messages, asked) == ["(why)b</s>"]
    assert trained_texts(utf8, messages, each(body)) == ["b</s>"]


def test_first_message_system_prompts_and_calls_without_content() -> None:
    system = "{% if messages[0].role != 'system' %}<system>be kind</s>{% endif %}"
    template = system + each("<{{ m.role }}>{{ m.content }}</s>")
    assert trained_texts(utf8, [{"role": "assistant", "content": "b"}], template) == ["b</s>"]
    assert trained_texts(utf8, chat("a", "b", system="c"), template, "all") == ["c</s>", "a</s>", "b</s>"]
    calls = each(
        "<{{ m.role }}>{% if m.content is not none %}{{ m.content }}{% endif %}"
        "{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}</s>",
        "{% if add_generation_prompt %}<assistant>{% endif %}",
    )
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f", "arguments": {"x": "<é>"}}]}
    messages = [{"role": "user", "content": "a", "tool_calls": None}, call]
    assert trained_texts(utf8, messages, calls) == ['{"name": "f", "arguments": {"x": "<é>"}}</s>']


def test_a_call_whose_header_has_no_line_break_of_its_own() -> None:
    template = each(
        "<{{ m.role }}>{% if m.content %}{{ '\n' + m.content }}{% endif %}"
        "{% for c in m.tool_calls or [] %}{{ '\n[' + c + ']' }}{% endfor %}</s>\n",
        "{% if add_generation_prompt %}<assistant>\n{% endif %}",
    )
    call = {"role": "assistant", "tool_calls": ["f()", "g()"]}
    messages = [{"role": "user", "content": "a"}, call, {"role": "tool", "content": "1"}, chat("a", "b")[1]]
    assert trained_texts(utf8, messages, template) == ["[f()]\n[g()]</s>", "b</s>"]


def test_a_system_message_that_belongs_to_the_first_question() -> None:
    body = (
        "{% if m.role == 'user' %}[{% if loop.index0 == 1 and messages[0].role == 'system' %}"
        "({{ messages[0].content }}){% endif %}{{ m.content }}]{% elif m.role == 'assistant' %}{{ m.content }}</s>"
        "{% elif loop.index0 or loop.last %}{{ raise_exception('a system message comes first') }}{% endif %}"
    )
    assert trained_texts(utf8, chat("a", "b", system="c"), each(body)) == ["b</s>"]
    with pytest.raises(SampleFailure, match="a system message comes first - in the messages up to 0"):
        encode(utf8, [chat("a", "b", system="c")], each(body), "all")


@pytest.mark.parametrize(
    ("template", "told"),
    [
        (each("{{ m.content }}{% if loop.last %}</s>{% endif %}"), "depends on the messages after it"),
        (each("{{ m.content if loop.last else m.content[:1] }};"), "depends on the messages after it"),
        ("{{ messages | length }}" + each("{{ m.content }};"), "depends on the messages after it"),
        (each("{{ m.content | length }}:{{ m.content }};"), "the text before the content of a message depends on"),
        (each("{{ m.content }}:{{ m.content | length }};"), "the text after the content of a message depends on"),
        (each("{{ m.role }};"), "the text before the content of a message depends on"),
    ],
)
def test_templates_that_change_text_afterwards_are_an_error(template: str, told: str) -> None:
    with pytest.raises(SampleFailure, match=f"{told}.*generation.* - at message 1"):
        encode(utf8, [TURNS], template)
    encode(utf8, [TURNS], template, "tool")  # nothing to find


# -- generation blocks ----------------------------------------------------------------------------------------


def test_blocks_may_change_with_later_messages() -> None:
    template = each(
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content if loop.last else m.content[:2] }}"
        "{% endgeneration %}{% else %}<{{ m.content }}>{% endif %}"
    )
    assert trained_texts(utf8, TURNS, template) == ["fi", "the answer"]
    first = [dict(one) for one in TURNS]
    first[1]["train"] = False
    assert trained_texts(utf8, first, template) == ["the answer"]


def test_several_blocks_of_an_answer() -> None:
    template = each(
        "<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}|"
        "{% generation %}</s>{% endgeneration %}{% else %}{{ m.content }}{% endif %}"
    )
    assert trained_texts(utf8, TURNS, template) == ["fine", "</s>", "the answer", "</s>"]
    changed = [dict(one) for one in TURNS]
    changed[1]["train"] = False  # blocks do not tell whose they are: what the message adds does
    assert trained_texts(utf8, changed, template) == ["the answer|</s>"]


def test_blocks_in_macros_and_captured_text() -> None:
    said = "{% if m.role == 'assistant' %}{% generation %} {{ m.content }}{% endgeneration %}{% endif %}"
    macro = "{% macro say(m) %}<{{ m.role }}>" + said + ".{% endmacro %}" + each("{{ say(m) }}")
    assert trained_texts(utf8, chat("a", "b"), macro) == [" b"]
    captured = each("{% set text %}<" + said + ">{% endset %}{{ text }}")
    assert trained_texts(utf8, chat("a", "b"), captured) == [" b"]
    changed = each("{% set text %}" + said + "{% endset %}{{ text | trim }}")
    with pytest.raises(SampleFailure, match="blocks whose text the chat template writes as it is"):
        encode(utf8, [chat("a", "b")], changed)


def test_blocks_of_other_roles_are_not_answers() -> None:
    template = each("<{{ m.role }}>{% generation %}{{ m.content }}{% endgeneration %}</s>")
    assert trained_texts(utf8, TURNS, template) == ["fine</s>", "the answer</s>"]  # what the messages add
    refuses = "{% if messages | length == 1 %}{{ raise_exception('too short') }}{% endif %}"
    several = each(
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %},"
        "{% generation %};{% endgeneration %}{% else %}<{{ m.content }}>{% endif %}"
    )
    assert trained_texts(utf8, chat("a", "b", system="c"), refuses + several) == ["b", ";"]


def test_messages_with_the_characters_of_marks() -> None:
    strange = "".join(map(chr, range(0x100000, 0x100004)))
    for template in (WITH_BLOCKS, each("<{{ m.role }}>{{ m.content }}<|im_end|>")):
        assert trained_texts(utf8, chat("a", strange), template) == [strange + END]
        ((ids, _),) = encode(bpe(), [chat("a", strange + END)], template)
        assert ids.count(bpe().token_to_id(END)) == 2


# -- the language ---------------------------------------------------------------------------------------------


def test_variables_and_controls_are_those_of_transformers() -> None:
    template = (
        "{{ eos_token }}{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}\n"
        "  {% for m in messages %}\n"
        "    {% if loop.index0 > 0 %}\n"
        "      {% break %}\n"
        "    {% endif %}\n"
        "{{ m | tojson }}{{ m.content | tojson(indent=1) }}\n"
        "  {% endfor %}\n"
    )
    tokenizer, messages = fast(template), chat("<é>", "b")
    ((ids, _),) = encode(tokenizer, [messages], None, "tool")
    assert ids == tokenizer.apply_chat_template(messages)["input_ids"]
    assert decode(tokenizer, ids).startswith(f"{END}TrueTrueFalse\n")


@pytest.mark.parametrize(
    ("template", "told"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].nothing.more }}", "UndefinedError"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ("{{ messages.__class__.__mro__ }}{{ messages.append(1) }}", "SecurityError"),
        ("{{ strftime_now('%Y') }}", "strftime_now"),
    ],
)
def test_errors_of_templates_name_messages(template: str, told: str) -> None:
    with pytest.raises(SampleFailure, match=f"accepts, got .*{told}.* - in the messages up to 1"):
        encode(utf8, [chat("a", "b")], template)


def test_without_jinja2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    _compiled.cache_clear()
    with pytest.raises(ArgumentError, match=r'not installed: pip install "jinja2>=3.1"'):
        encode(utf8, [chat("a", "b")], each("{{ m.content }}"))
    assert trained_texts(utf8, chat("a", "b")) == [f"b{END}"]
