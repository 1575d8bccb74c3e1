"""Bodies that are long or made to be slow: refused early by name, read beside the event loop, in linear time."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatserve.errors import RequestError
from chatserve.server import validation
from chatserve.server.brackets import MAX_CONTAINERS, MAX_NESTING, check_brackets
from chatserve.server.responses_bodies import InputItem, ResponsesBody, chat_body
from tests.server.harness import HI, Served

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
CALL = {"function": {"name": "f"}}
PART = {"type": "text", "text": "x"}
LONG = "x" * 5000


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT, {"messages": HI * 9000}, "messages"),
        (CHAT, {"messages": [*HI, {"role": "user", "content": [PART] * 1025}]}, "messages[1].content"),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [CALL] * 129}]}, "messages[0].tool_calls"),
        (CHAT, {"messages": HI, "tools": [{"function": {"name": f"f{i}"}} for i in range(129)]}, "tools"),
        (CHAT, {"messages": HI, "guided_choice": ["x"] * 4097}, "guided_choice"),
        (CHAT, {"messages": HI, "structured_outputs": {"choice": ["x"] * 4097}}, "structured_outputs.choice"),
        (CHAT, {"messages": HI, "logit_bias": {str(i): 1 for i in range(16_385)}}, "logit_bias"),
        (
            CHAT,
            {"messages": HI, "decoder": "beam", "decoder_params": {str(i): 1 for i in range(257)}},
            "decoder_params",
        ),
        (COMPLETIONS, {"prompt": ["x"] * 1025}, "prompt"),
        (COMPLETIONS, {"prompt": [[5]] * 1025}, "prompt"),
        (COMPLETIONS, {"prompt": [5] * 500_000}, "prompt"),
        (RESPONSES, {"input": [{"type": "function_call", "name": "f"}] * 8193}, "input"),
        (RESPONSES, {"input": [{"type": "function_call", "name": "f"}] * 8192}, "input"),
        (RESPONSES, {"input": [{"role": "user", "content": [PART] * 1025}]}, "input[0].content"),
        ("/tokenize", {"prompt": "x" * 400_000}, "prompt"),
        ("/tokenize", {"messages": HI * 9000}, "messages"),
        ("/v1/prefixes", {"name": "a", "text": "x" * 400_000}, "text"),
        ("/v1/prefixes", {"name": "a", "messages": HI * 9000}, "messages"),
    ],
)
def test_too_many_of_anything(served: Served, path: str, fields: dict[str, Any], param: str) -> None:
    response = served.http.post(path, json=fields)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert param.split("[")[0].split(".")[0] in error["message"]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES, "/tokenize", "/detokenize", "/v1/prefixes"])
def test_too_many_objects_anywhere(served: Served, path: str) -> None:
    response = served.http.post(path, content=b'{"x":[' + b"[]," * MAX_CONTAINERS + b"[]]}")
    assert response.status_code == 400
    assert str(MAX_CONTAINERS) in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "fields"),
    [
        ("POST", CHAT, {"messages": [{"role": "user", "content": LONG}]}),
        ("POST", CHAT, {"messages": HI, "tools": [{"function": {"name": "f", "description": LONG}}]}),
        ("POST", COMPLETIONS, {"prompt": LONG}),
        ("POST", COMPLETIONS, {"prompt": [5] * 5000}),
        ("POST", RESPONSES, {"input": LONG}),
        ("POST", "/tokenize", {"prompt": LONG}),
        ("POST", "/detokenize", {"tokens": [5] * 5000}),
        ("POST", "/v1/prefixes", {"name": "a", "text": LONG}),
        ("PUT", "/ui/stream/" + "a" * 32, {"messages": [{"role": "user", "content": LONG}]}),
    ],
)
def test_long_bodies_are_read_off_the_loop(
    served: Served, monkeypatch: pytest.MonkeyPatch, method: str, path: str, fields: dict[str, Any]
) -> None:
    readers = []
    monkeypatch.setattr(validation, "check_brackets", lambda raw: readers.append(threading.current_thread().name))
    assert served.http.request(method, path, json=fields).status_code in (200, 400)
    assert served.chat(max_tokens=1).status_code == 200
    assert [name.startswith("chatserve-bodies") for name in readers] == [True, False]


def test_a_continued_prefix_counts_as_part_of_the_body(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = [{"role": "system", "content": "x" * 2000}]
    assert served.http.post("/v1/prefixes", json={"name": "long", "messages": messages}).status_code == 200
    readers = []
    monkeypatch.setattr(validation, "check_brackets", lambda raw: readers.append(threading.current_thread().name))
    assert served.chat(decoder="shared-prefix", decoder_params={"prefix": "long"}).status_code == 200
    assert served.http.delete("/v1/prefixes/long").status_code == 200
    assert [name.startswith("chatserve-bodies") for name in readers] == [True]


def test_calls_of_a_response_are_gathered_in_linear_time() -> None:
    def seconds(num_items: int) -> float:
        body = ResponsesBody(input=[InputItem(type="function_call", name="f") for _ in range(num_items)])
        started = time.perf_counter()
        [message] = chat_body(body).messages
        taken = time.perf_counter() - started
        assert len(message.tool_calls or ()) == num_items
        return taken

    pairs = [(seconds(2000), seconds(32_000)) for _ in range(5)]
    short, long = (min(times) for times in zip(*pairs, strict=True))
    assert long < 64 * short, "16 times the items; quadratic would be 256 times"


json_values = st.recursive(
    st.none() | st.integers() | st.text('"\\{}[]a\n', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('"\\{}[]a', max_size=4), inner, max_size=4),
)


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


def containers_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + sum(map(containers_of, inner))


@given(json_values, st.integers(MAX_NESTING - 6, MAX_NESTING + 1))
def test_nesting_is_counted_outside_of_strings(value: Any, num_around: int) -> None:
    raw = b"[" * num_around + json.dumps(["{" * (MAX_NESTING + 1), value]).encode() + b"]" * num_around
    is_deep = num_around + 1 + depth_of(value) > MAX_NESTING
    if is_deep:
        with pytest.raises(RequestError, match="nested deeper"):
            check_brackets(raw)
    else:
        check_brackets(raw)


@given(json_values, st.booleans())
def test_containers_are_counted_outside_of_strings(value: Any, is_over: bool) -> None:
    data = ["{" * (MAX_NESTING + 1), value]
    filling = MAX_CONTAINERS - 1 - containers_of(data) + is_over
    raw = b"[" + json.dumps(data).encode() + b",[]" * filling + b"]"
    if is_over:
        with pytest.raises(RequestError, match=f"holds {MAX_CONTAINERS + 1} "):
            check_brackets(raw)
    else:
        check_brackets(raw)
