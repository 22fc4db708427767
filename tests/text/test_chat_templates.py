"""Built-in chat formats, and functions of messages that return pieces."""

from __future__ import annotations

from typing import Any

import pytest

from shardex.layers import SampleFailure
from tests.text.conversations import END, bpe, chat, decode, encode, encoder, tiktoken_encoding, trained_texts, utf8

LLAMA3 = """
{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
    {{- message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}
"""


def test_chatml() -> None:
    ((ids, mask),) = encode(utf8, [chat("a", "b", system="c")])
    parts = [f"<|im_start|>system\nc{END}\n<|im_start|>user\na{END}\n<|im_start|>assistant\n", f"b{END}", "\n"]
    assert decode(utf8, ids) == "".join(parts)
    assert mask == [0] * len(parts[0]) + [1] * len(parts[1]) + [0]


def test_llama3() -> None:
    ((ids, mask),) = encode(utf8, [chat("a ", " b\n", system="c")], "llama3")
    header = "<|start_header_id|>{}<|end_header_id|>\n\n".format
    first = f"<|begin_of_text|>{header('system')}c<|eot_id|>{header('user')}a<|eot_id|>{header('assistant')}"
    assert decode(utf8, ids) == f"{first}b<|eot_id|>"
    assert mask == [0] * len(first) + [1] * len("b<|eot_id|>")
    jinja = LLAMA3.replace("bos_token", "'<|begin_of_text|>'")
    for messages in (chat("a ", " b\n", system="c"), chat("x", "", "y", "z")):
        assert encode(utf8, [messages], jinja) == encode(utf8, [messages], "llama3")


# -- functions ------------------------------------------------------------------------------------------------


def by_role(messages: list[dict[str, Any]]) -> Any:
    for one in messages:
        yield f"[{one['role']}] ", None
        yield one["content"] + END, one["role"]


def by_message(messages: list[dict[str, Any]]) -> Any:
    return [piece for one in messages for piece in ((f"[{one['role']}] ", None), (one["content"] + END, one))]


@pytest.mark.parametrize("function", [by_role, by_message])
def test_functions_return_pieces(function: Any) -> None:
    messages = chat("hello", "fine", "and", "you")
    for tokenizer in (bpe(), tiktoken_encoding(), utf8):
        assert trained_texts(tokenizer, messages, function) == [f"fine{END}", f"you{END}"]
        ((ids, _),) = encode(tokenizer, [messages], function)
        assert decode(tokenizer, ids) == f"[user] hello{END}[assistant] fine{END}[user] and{END}[assistant] you{END}"
    assert encoder(utf8, function).describe() == {
        "template": f"function {function.__name__}",
        "train_on": ["assistant"],
    }


def test_messages_of_one_role_that_differ_need_their_message() -> None:
    messages = chat("hello", "fine", "and", "you")
    messages[1]["train"] = False
    assert trained_texts(utf8, messages, by_message) == [f"you{END}"]
    with pytest.raises(SampleFailure, match=r"returns \(text, message\) instead of \(text, 'assistant'\)"):
        encode(utf8, [messages], by_role)


def test_text_of_a_role_that_no_message_has() -> None:
    def function(messages: Any) -> Any:
        return [("be kind", "system"), *by_role(messages)]

    assert trained_texts(utf8, chat("a", "b"), function, ["system"]) == ["be kind"]
    assert trained_texts(utf8, chat("a", "b"), function) == [f"b{END}"]


def test_a_function_says_where_special_tokens_are() -> None:
    def function(messages: Any) -> Any:
        return [piece for one in messages for piece in ((one["content"], one, False), (END, one, True))]

    for tokenizer in (bpe(), tiktoken_encoding()):
        ((ids, mask),) = encode(tokenizer, [chat(f"a{END}", f"b{END}")], function)
        end = tokenizer.token_to_id(END) if hasattr(tokenizer, "token_to_id") else tokenizer.encode_single_token(END)
        assert ids.count(end) == 2 and ids[-1] == end
        assert decode(tokenizer, ids) == f"a{END}{END}b{END}{END}"
        assert trained_texts(tokenizer, chat(f"a{END}", f"b{END}"), function) == [f"b{END}{END}"]
        assert mask[-1] == 1


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (None, "expected a list of pieces from the template .*, got none"),
        ("text", "expected a list of pieces from the template"),
        (["text"], r"expected pieces \(text, role\) from the template"),
        ([("a", "user", 3)], "expected True or False as the third item"),
        ([(1, "user")], r"expected pieces \(text, role\)"),
        ([("a", {"role": "user", "content": "a"})], "expected a role, one of the given messages, or None"),
    ],
)
def test_wrong_pieces(result: Any, told: str) -> None:
    with pytest.raises(SampleFailure, match=told):
        encode(utf8, [chat("a", "b")], lambda messages: result)


def test_a_function_may_change_its_messages() -> None:
    def function(messages: list[Any]) -> Any:
        messages[0]["content"] = "changed"
        return [(one.pop("content"), one) for one in messages]

    given = chat("a", "b")
    assert trained_texts(utf8, given, function) == ["b"]
    assert given == chat("a", "b")
