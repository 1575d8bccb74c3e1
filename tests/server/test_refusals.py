"""What is refused: the status, the body's shape, the field named, and never a 5xx from bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chatserve.errors import DecoderError, UnavailableError
from chatserve.server.errors import failure_of
from tests.server.harness import HI, Served, events, text_of

Start = Callable[..., Served]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def error_of(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error body, after checking its shape."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"]
    return error


def function(name: str, parameters: Any = None) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def json_schema(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"seed": 2**70}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"n": 0}, "n"),
        ({"n": 10**6}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": "1"}, "timeout"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a", 5]}, "stop[1]"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ""}, "stop"),
        ({"stop": ["x" * 2000] * 5}, "stop"),
        ({"stop": ["x"] * 100}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [10**6]}, "stop_token_ids"),
        ({"logit_bias": {"191222": -100}}, "logit_bias"),
        ({"logit_bias": {"260": 1}}, "logit_bias"),
        ({"logit_bias": {"AI": -100}}, "logit_bias"),
        ({"logit_bias": {"5": "x"}}, "logit_bias.5"),
        ({"logit_bias": {"5": 101}}, "logit_bias[5]"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream_options": {"include_usage": 1}, "stream": True}, "stream_options.include_usage"),
        ({"decoder": "no-such"}, "decoder"),
        ({"decoder": 5}, "decoder"),
        ({"decoder": "greedy", "decoder_params": {"no_such": 1}}, "decoder_params"),
        ({"decoder_params": {"width": 2}}, "decoder_params"),
        ({"decoder": "shared-prefix"}, "decoder_params.prefix"),
        ({"decoder": "guidance", "decoder_params": {"negative": "a " * 3000}}, "decoder_params"),
        ({"decoder_parms": {"width": 2}}, "decoder_parms"),
        ({"Decoder": "beam"}, "Decoder"),
        ({"decoders": "beam"}, "decoders"),
        ({"cache-salt": "x"}, "cache-salt"),
        ({"returnTrace": True}, "returnTrace"),
        ({"best_of": 0}, "best_of"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"priority": 2**40}, "priority"),
        ({"cache_salt": "x" * 1000}, "cache_salt"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": json_schema({"enum": []})}, "response_format.json_schema.schema"),
        (
            {"response_format": json_schema({"type": "array", "uniqueItems": True})},
            "response_format.json_schema.schema",
        ),
        ({"response_format": json_schema({"type": "object"}), "ignore_eos": True}, "ignore_eos"),
        ({"guided_json": False}, "guided_json"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_grammar": "start: nothing"}, "guided_grammar"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": ["a", 5]}, "guided_choice[1]"),
        ({"guided_choice": ["a"], "guided_regex": "a"}, "guided_choice"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_fields_of_both_endpoints(served: Served, path: str, fields: dict[str, Any], param: str) -> None:
    base: dict[str, Any] = {"messages": HI} if path == CHAT else {"prompt": "Hi"}
    error = error_of(served.http.post(path, json=base | fields))
    assert error["param"] == param
    assert param.split("[")[0].split(".")[0] in error["message"]
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "Hi"}, "messages"),
        ({"messages": [1]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": 1, "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [*HI, {"role": "user"}]}, "messages[1].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        (
            {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]},
            "messages[0].tool_calls[0].function",
        ),
        ({"messages": [{"role": "user", "tool_calls": [{"function": {"name": "f"}}]}]}, "messages[0].content"),
        ({"logprobs": 3}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [{"type": "code_interpreter"}]}, "tools[0]"),
        ({"tools": [{"function": {}}]}, "tools[0].function.name"),
        ({"tools": [function("a b")]}, "tools[0].function.name"),
        ({"tools": [function("f"), function("f")]}, "tools[1].function.name"),
        ({"tools": [function("f")] * 200}, "tools"),
        ({"tools": [function("f")], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [function("f")], "tool_choice": {"function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [function("f")], "guided_regex": "a"}, "guided_regex"),
        ({"tools": [function("f", {"type": "nothing"})], "tool_choice": "required"}, "tools"),
        ({"tools": [function("f", {"enum": []})], "tool_choice": {"function": {"name": "f"}}}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"functions": [{}]}, "functions"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ],
)
def test_fields_of_chat(served: Served, fields: dict[str, Any], param: str) -> None:
    assert error_of(served.chat(**fields))["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": ["a", 1]}, "prompt[1]"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": ["a"] * 2000}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10**30]}, "prompt"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": "x"}, "echo"),
        ({"suffix": "x"}, "suffix"),
    ],
)
def test_fields_of_completions(served: Served, fields: dict[str, Any], param: str) -> None:
    assert error_of(served.complete(**fields))["param"] == param


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}, "tools": [], "tool_choice": "none", "modalities": ["text"]},
        {"no_such_field": {"deep": [1]}, "user": "me", "store": False, "metadata": {}, "service_tier": "auto"},
        {"best_of": 1, "num_beams": 1, "use_beam_search": False},
        {"encoder": "x", "trace": True, "guided_decoding_backend": "x", "decoding": {}, "cache": 1, "salt": ""},
    ],
)
def test_harmless_and_unknown_fields_are_fine(served: Served, fields: dict[str, Any]) -> None:
    assert served.chat(**fields).status_code == 200


@pytest.mark.parametrize("fields", [{"use_beam_search": True}, {"num_beams": 3}, {"decoder": "beam"}])
def test_beam_search_reaches_the_decoder_of_that_name(served: Served, fields: dict[str, Any]) -> None:
    names = {decoder["id"] for decoder in served.http.get("/v1/decoders").json()["data"]}
    response = served.chat(**fields)
    if "beam" in names:
        assert response.status_code == 200, response.text
    else:
        assert "beam" in error_of(response)["message"]


BROKEN_BODIES = [
    b"",
    b"   ",
    b"{",
    b"[]",
    b"null",
    b"5",
    b'"x"',
    b"{} x",
    b'{"messages": [}',
    b'{"temperature": NaN}',
    b'{"temperature": Infinity}',
    b'{"temperature": 1e400}',
    b'{"max_tokens": 1' + b"0" * 5000 + b"}",
    b'{"seed": -' + b"9" * 400 + b"}",
    b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    b'{"messages": [{"role": "user", "content": "\xff"}]}',
    b'{"messages": [{"role": "user", "content": "\xed\xa0\x80"}]}',
    b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"decoder_params": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}",
    b"\xef\xbb\xbf{}",
    b"\x00",
    b"\x80\x81",
    b"messages=hi",
]


@pytest.mark.parametrize("body", BROKEN_BODIES, ids=range(len(BROKEN_BODIES)))
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize"])
def test_broken_bodies(served: Served, path: str, body: bytes) -> None:
    error_of(served.http.post(path, content=body))


def test_the_last_of_equal_keys_counts(served: Served) -> None:
    body = b'{"messages": [{"role": "user", "content": "x"}], "n": 1, "n": 2}'
    assert len(served.http.post(CHAT, content=body).json()["choices"]) == 2


field_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["user", "greedy", 2**64, -(2**63), 1e308, HI, "Hi", {"type": "text"}, {"65": 1}]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
field_names = st.sampled_from(
    [
        "model",
        "stream",
        "stream_options",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "seed",
        "min_tokens",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "decoder",
        "decoder_params",
        "use_beam_search",
        "num_beams",
        "best_of",
        "cache_salt",
        "priority",
        "timeout",
        "return_trace",
        "response_format",
        "messages",
        "prompt",
        "logprobs",
        "top_logprobs",
        "tools",
        "echo",
        "suffix",
        "tokens",
        "add_special_tokens",
        "max_completion_tokens",
    ]
)


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from([CHAT, COMPLETIONS, "/tokenize", "/detokenize"]),
    fields=st.dictionaries(field_names, field_values, max_size=4),
)
def test_no_body_is_a_server_error(served: Served, path: str, fields: dict[str, Any]) -> None:
    base: dict[str, Any] = {"messages": HI, "prompt": "Hi", "max_tokens": 4}
    if path == "/tokenize":
        del base["prompt"]
    body = json.dumps({**base, **fields}).encode()
    response = served.http.post(path, content=body)
    assert response.status_code < 500, response.text
    if response.status_code != 200:
        error_of(response, response.status_code)


def test_a_bad_request_harms_no_other_stream(start_server: Start) -> None:  # case b7
    served = start_server("x" * 200, delay=0.002)
    with served.http.stream("POST", CHAT, json={"messages": HI, "stream": True}) as response:
        pieces = response.iter_bytes()
        received = next(pieces)
        for bias in ({"191222": -100}, {"260": 1}, {"AI": -100}, {"5": "x"}):
            error_of(served.chat(logit_bias=bias))
        received += b"".join(pieces)
    assert text_of(events(received)) == "x" * 200


def test_routes_and_methods(served: Served) -> None:
    assert error_of(served.http.get("/v1/nothing"), 404)["code"] == "not_found"
    assert error_of(served.http.post("/v1/chat/completions/"), 404)["code"] == "not_found"
    wrong_method = served.http.get(CHAT)
    assert error_of(wrong_method, 405)["code"] == "method_not_allowed"
    assert wrong_method.headers["allow"] == "POST"


def test_a_body_that_is_too_long(start_server: Start) -> None:
    served = start_server(max_body_bytes=1000)
    content = "x" * 2000
    assert error_of(served.chat(messages=[{"role": "user", "content": content}]), 413)["code"] == "body_too_large"
    chunked = served.http.post(CHAT, content=iter([b" " * 600, b" " * 600]))
    assert error_of(chunked, 413)["code"] == "body_too_large"
    assert served.chat().status_code == 200


def test_an_unknown_model(served: Served) -> None:
    assert error_of(served.chat(model="gpt-4"), 404) == error_of(served.http.get("/v1/models/gpt-4"), 404)
    with pytest.raises(openai.NotFoundError) as caught:
        served.openai.completions.create(model="gpt-4", prompt="x")
    assert caught.value.code == "model_not_found"
    assert caught.value.param == "model"


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_prompt_longer_than_the_context(start_server: Start, is_stream: bool) -> None:
    served = start_server(max_model_len=100)
    long = [{"role": "user", "content": "x" * 100}]
    error = error_of(served.chat(messages=long, stream=is_stream))
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == "messages"
    assert "118" in error["message"]
    assert "100" in error["message"]
    assert error_of(served.complete(prompt="x" * 100))["param"] == "prompt"
    both = error_of(served.chat(max_tokens=90))
    assert (both["code"], both["param"]) == ("context_length_exceeded", "messages")


def test_a_prompt_that_the_pool_can_never_hold(start_server: Start) -> None:
    served = start_server(num_blocks=8)
    assert error_of(served.complete(prompt="x" * 200))["code"] == "context_length_exceeded"
    assert served.complete(prompt="xxxxx").json()["choices"][0]["text"] == "Hello!"


def test_not_ready(start_server: Start) -> None:
    served = start_server()
    served.engine.status = "draining"
    response = served.chat()
    assert error_of(response, 503)["code"] == "draining"
    assert "retry-after" in response.headers
    served.engine.status = "dead"
    response = served.chat(stream=True)
    assert error_of(response, 503)["code"] == "dead"
    assert response.headers["x-should-retry"] == "false"


def test_which_failures_a_retry_can_help() -> None:
    assert not failure_of(DecoderError("broken")).retry_helps
    assert not failure_of(ValueError("secret detail")).retry_helps
    assert failure_of(UnavailableError("starting"), engine_status="starting").retry_helps
    assert b"secret detail" not in failure_of(ValueError("secret detail")).body()


def test_refusals_tell_clients_not_to_retry(served: Served) -> None:
    assert served.chat(n=0).headers["x-should-retry"] == "false"
