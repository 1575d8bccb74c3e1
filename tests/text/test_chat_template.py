from __future__ import annotations

import re
from typing import Any

import pytest

from chatserve.errors import ModelLoadError, RequestError
from chatserve.text import Vocabulary
from chatserve.text.chat_template import ChatTemplate

HI = [{"role": "user", "content": "Hi"}]


def test_the_default_template_equals_transformers(real_vocabulary: Vocabulary, references: Any) -> None:
    template = ChatTemplate(references["chat_template"], bos_token="<|im_start|>", eos_token="<|im_end|>")
    for chat in references["chats"]:
        text = template.render(chat["messages"], add_generation_prompt=chat["add_generation_prompt"])
        assert text == chat["text"]
        assert real_vocabulary.encode(text) == chat["ids"]


def test_the_begin_token_is_not_doubled(real_vocabulary: Vocabulary, references: Any) -> None:  # case j1
    text = ChatTemplate(references["chat_template"], bos_token="<|im_start|>").render(HI)
    ids = real_vocabulary.encode(text)
    assert (len(ids), ids[:3]) == (31, [1, 9690, 198])
    assert (ids.count(1), ids.count(2)) == (3, 2)
    assert text.count("You are a helpful AI assistant") == 1


@pytest.mark.parametrize("content", [[{"type": "text", "text": "Hi"}], {"type": "text"}, 5])
def test_content_that_is_no_text_is_refused(content: Any) -> None:  # case b5
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    with pytest.raises(RequestError) as caught:
        template.render([*HI, {"role": "user", "content": content}])
    assert caught.value.param == "messages[1].content"


def test_a_message_that_is_no_mapping_is_refused() -> None:
    messages: Any = "Hi"
    with pytest.raises(RequestError, match="must have a role and a content, this is str") as caught:
        ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}").render(messages)
    assert caught.value.param == "messages[0]"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",  # TypeError
        "{{ messages[7].content }}",  # undefined
        "{{ messages[0]['x'] + 'y' }}",
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.append(1) }}",  # the sandbox forbids changes
        "{{ ''.__class__ }}{{ ''.__class__.__mro__ }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ namespace(_x=1) }}",
        "{{ 1 / 0 }}",
    ],
)
def test_what_a_template_raises_is_a_request_error(source: str) -> None:
    with pytest.raises(RequestError) as caught:
        ChatTemplate(source).render(HI)
    assert caught.value.param == "messages"


def test_the_message_of_the_template_reaches_the_caller() -> None:
    with pytest.raises(RequestError, match="roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}").render(HI)


def test_a_template_that_cannot_be_compiled() -> None:
    with pytest.raises(ModelLoadError, match="chat template"):
        ChatTemplate("{% for %}")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>Hi</s>"),
        ("  {% if true %}\nx\n  {% endif %}\n", "x\n"),  # trim_blocks and lstrip_blocks
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ {'a': '<é>', 'b': [1]} | tojson }}", '{"a": "<é>", "b": [1]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}", '{\n "a": 2,\n "b": 1\n}'),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "Hi"),
        ("{% set ns = namespace(n=1) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "2"),
        ("{{ dict(a=1).a }}{{ 'yes' if tools is none else 'no' }}", "1yes"),
        ("{{ 'a' if add_generation_prompt else 'b' }}{{ enable_thinking }}", "aTrue"),
        ("{{ 'content' in messages[0] }}{{ 'tool_calls' in messages[0] }}", "TrueFalse"),
    ],
)
def test_the_environment_of_templates(source: str, expected: str) -> None:
    template = ChatTemplate(source, bos_token="<s>", eos_token="</s>")
    message = {"role": "user", "content": "Hi", "tool_calls": None}
    assert template.render([message], enable_thinking=True) == expected


def test_tools_and_dates() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert ChatTemplate("{{ tools[0].function.name }}").render(HI, tools=tools) == "f"
    assert re.fullmatch(r"20\d\d-\d\d", ChatTemplate("{{ strftime_now('%Y-%m') }}").render(HI))


@pytest.mark.parametrize("content", ["Once upon", "Once upon ", "", "x" * 40 + "\n"])
def test_an_unfinished_message_ends_with_its_content(references: Any, content: str) -> None:
    template = ChatTemplate(references["chat_template"], bos_token="<|im_start|>", eos_token="<|im_end|>")
    text = template.render_unfinished([*HI, {"role": "assistant", "content": content}])
    assert text == template.render(HI, add_generation_prompt=True) + content


def test_the_last_of_equal_messages_is_the_unfinished_one() -> None:
    template = ChatTemplate("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    assert template.render_unfinished([{"content": "a"}, {"content": "a"}]) == "[a][a"


def test_a_message_that_the_template_leaves_out_cannot_be_continued() -> None:
    with pytest.raises(RequestError, match="does not print the last message"):
        ChatTemplate("nothing").render_unfinished(HI)
