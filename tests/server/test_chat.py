"""``/v1/chat/completions`` through the real openai client and byte by byte."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from chatserve.testing import END_TOKEN_ID, VOCAB_SIZE
from tests.server.harness import HI, Served, events, text_of

Start = Callable[..., Served]


def test_a_whole_answer(served: Served) -> None:
    answer = served.openai.chat.completions.create(model="fake", messages=HI)
    assert answer.object == "chat.completion"
    assert answer.model == "fake"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == "Hello!"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    # 20 tokens: start, "user\nHi", end, start, "assistant\n"; 6 letters and the end token.
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (20, 7, 27)


def test_a_streamed_answer(served: Served) -> None:
    stream = served.openai.chat.completions.create(model="fake", messages=HI, stream=True)
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello!"
    assert len({chunk.id for chunk in chunks}) == 1
    assert len({chunk.created for chunk in chunks}) == 1


def test_the_frames_of_a_stream(served: Served) -> None:
    response = served.chat(stream=True)
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert "content-encoding" not in response.headers
    chunks = events(response.content)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert all(set(choice["delta"]) == {"content"} for choice in choices[1:-1])
    assert choices[-1]["delta"] == {}
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert all(set(choice) == {"index", "delta", "logprobs", "finish_reason"} for choice in choices)


def test_role_chunks_come_first_in_index_order(served: Served) -> None:
    chunks = events(served.chat(stream=True, n=3).content)
    first = [chunk["choices"][0] for chunk in chunks[:3]]
    assert [choice["index"] for choice in first] == [0, 1, 2]
    assert all(choice["delta"].get("role") == "assistant" for choice in first)
    for index in range(3):
        assert text_of(chunks, index) == "Hello!"
        reasons = [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert reasons[-1] == "stop"
        assert reasons[:-1] == [None] * (len(reasons) - 1)


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
def test_no_usage_unless_asked(served: Served, options: object) -> None:  # case b1
    chunks = events(served.chat(stream=True, max_tokens=4, stream_options=options).content)
    assert all(chunk["choices"] for chunk in chunks)
    assert all("usage" not in chunk for chunk in chunks)


def test_usage_comes_once_in_a_last_chunk_without_choices(served: Served) -> None:  # case b1
    chunks = events(served.chat(stream=True, max_tokens=4, stream_options={"include_usage": True}).content)
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"] == []
    usage = chunks[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (20, 4, 24)
    assert 0 <= usage["prompt_tokens_details"]["cached_tokens"] < 20, "a part of the prompt may be cached, never all"


def test_continuous_usage_stands_in_every_chunk_and_grows(served: Served) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(served.chat(stream=True, stream_options=options).content)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] == 7


@pytest.mark.parametrize("answer", ["Hi 🦙", "日本語", "\u2028\u2029\u0085\x0b\r\n \x00 \x7f end\n", "a\u2028b"])
@pytest.mark.parametrize("has_logprobs", [False, True])
def test_any_text_arrives_unharmed_in_both_modes(
    start_server: Start, answer: str, has_logprobs: bool
) -> None:  # case f9
    served = start_server(answer)
    whole = served.chat(logprobs=has_logprobs).json()["choices"][0]
    chunks = events(served.chat(stream=True, logprobs=has_logprobs).content)
    stream = served.openai.chat.completions.create(model="fake", messages=HI, stream=True)
    client_text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert whole["message"]["content"] == text_of(chunks) == client_text == answer
    assert not any("\ufffd" in (chunk["choices"][0]["delta"].get("content") or "") for chunk in chunks)


def test_leading_spaces_survive(start_server: Start) -> None:
    served = start_server("  leading the")
    assert served.chat().json()["choices"][0]["message"]["content"] == "  leading the"


@pytest.mark.parametrize(
    ("answer", "stop", "expected"),
    [("ABCDEFGHIJ", "DEFGHIJ", "ABC"), ("ABCDEF", ["DE"], "ABC"), ("OK?!", ["x", "!"], "OK?"), ("ABCD", "DE", "ABCD")],
)
def test_stop_strings_never_show(start_server: Start, answer: str, stop: object, expected: str) -> None:
    served = start_server(answer)
    chunks = events(served.chat(stream=True, stop=stop).content)
    assert text_of(chunks) == expected
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    # "D" alone may be shown only if nothing longer can come of it
    pieces = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks]
    assert all(expected.startswith(shown) for shown in itertools.accumulate(pieces))
    assert served.chat(stop=stop).json()["choices"][0]["message"]["content"] == expected


def test_logprobs_without_top_logprobs(served: Served) -> None:  # case b11
    whole = served.chat(logprobs=True, max_tokens=3).json()["choices"][0]
    items = whole["logprobs"]["content"]
    assert [item["token"] for item in items] == ["H", "e", "l"]
    assert all(item["top_logprobs"] == [] and item["logprob"] <= 0 for item in items)
    assert bytes(itertools.chain.from_iterable(item["bytes"] for item in items)).decode() == whole["message"]["content"]
    chunks = events(served.chat(logprobs=True, max_tokens=3, stream=True).content)
    streamed = [c["logprobs"]["content"] for chunk in chunks for c in chunk["choices"] if c["logprobs"]]
    assert list(itertools.chain.from_iterable(streamed)) == items


def test_top_logprobs_are_best_first(served: Served) -> None:
    item = served.chat(logprobs=True, top_logprobs=3, max_tokens=1).json()["choices"][0]["logprobs"]["content"][0]
    found = [entry["logprob"] for entry in item["top_logprobs"]]
    assert len(found) == 3
    assert found == sorted(found, reverse=True)
    assert item["top_logprobs"][0]["token"] == item["token"] == "H"


def test_part_of_a_character_is_shown_by_its_bytes(start_server: Start) -> None:
    served = start_server("é")
    items = served.chat(logprobs=True).json()["choices"][0]["logprobs"]["content"]
    assert [item["token"] for item in items[:2]] == ["bytes:\\xc3", "bytes:\\xa9"]
    assert [item["bytes"] for item in items[:2]] == [[0xC3], [0xA9]]


def test_logprobs_go_out_while_text_is_held_back(start_server: Start) -> None:
    served = start_server("ABCD")
    chunks = events(served.chat(stream=True, logprobs=True, stop="BCX").content)
    items = [i for chunk in chunks for c in chunk["choices"] if c["logprobs"] for i in c["logprobs"]["content"]]
    assert bytes(itertools.chain.from_iterable(item["bytes"] for item in items)) == b"ABCD"
    assert text_of(chunks) == "ABCD"


def test_one_token_is_length(served: Served) -> None:  # case b3
    for field in ("max_tokens", "max_completion_tokens"):
        answer = served.chat(**{field: 1}).json()
        assert answer["usage"]["completion_tokens"] == 1
        assert answer["choices"][0]["finish_reason"] == "length"


def test_max_completion_tokens_wins_over_the_older_name(served: Served) -> None:
    answer = served.chat(max_tokens=5, max_completion_tokens=2).json()
    assert answer["choices"][0]["message"]["content"] == "He"


def test_parts_of_text_equal_the_string(served: Served) -> None:  # case b5
    one = served.chat(messages=[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]).json()
    two = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    assert one["usage"]["prompt_tokens"] == 20
    assert served.chat(messages=[{"role": "user", "content": two}]).json()["usage"]["prompt_tokens"] == 20


def test_nulls_are_absent_fields(served: Served) -> None:  # case b3
    fields = (
        "model stream stream_options temperature top_p n seed stop max_tokens logit_bias logprobs tools user decoder"
    )
    assert served.chat(**dict.fromkeys(fields.split())).json()["choices"][0]["message"]["content"] == "Hello!"


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "tool"])
def test_every_role_is_taken(served: Served, role: str) -> None:
    assert served.chat(messages=[{"role": role, "content": "x"}, *HI]).status_code == 200


def test_logit_bias_is_added_to_the_logits(served: Served) -> None:
    answer = served.chat(logit_bias={str(ord("x")): 100}, max_tokens=3, temperature=0).json()
    assert answer["choices"][0]["message"]["content"] == "xxx"


def test_stop_token_ids_and_ignore_eos(served: Served) -> None:
    answer = served.chat(stop_token_ids=[ord("l")]).json()
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert len(answer["choices"][0]["message"]["content"]) <= 3
    forever = served.chat(ignore_eos=True, max_tokens=10).json()
    assert forever["choices"][0]["finish_reason"] == "length"
    assert forever["usage"]["completion_tokens"] == 10


def test_the_template_is_applied_once(served: Served) -> None:
    tokens = served.http.post("/tokenize", json={"messages": HI}).json()["tokens"]
    assert tokens == [257, *b"user\nHi", END_TOKEN_ID, 257, *b"assistant\n"]


class Listening:
    """Answers "x" to everything and keeps what it was asked, end tokens shown as "|"."""

    vocab_size = VOCAB_SIZE

    def __init__(self) -> None:
        self.prompt = ""

    def __call__(self, context: NDArray[np.int32]) -> NDArray[np.float32]:
        self.prompt = "".join(chr(token) if token < 256 else "|" for token in context.tolist())
        row = np.zeros(VOCAB_SIZE, np.float32)
        row[ord("x")] = 30
        return row


def test_an_answer_can_be_continued(start_server: Start) -> None:
    model = Listening()
    served = start_server(model)
    half = [*HI, {"role": "assistant", "content": "Well, "}]
    for fields, end in (
        ({}, "|assistant\nWell, ||assistant\n"),
        ({"continue_final_message": True}, "|assistant\nWell, "),
        ({"add_generation_prompt": False}, "|assistant\nWell, |"),
    ):
        assert served.chat(max_tokens=1, messages=half, **fields).status_code == 200
        assert model.prompt.endswith(end)


@pytest.mark.parametrize(
    ("role", "fields", "param"),
    [
        ("user", {}, "continue_final_message"),
        ("assistant", {"add_generation_prompt": True}, "add_generation_prompt"),
    ],
)
def test_what_cannot_be_continued_is_refused(served: Served, role: str, fields: dict[str, bool], param: str) -> None:
    messages = [*HI, {"role": role, "content": "Well, "}]
    response = served.chat(messages=messages, continue_final_message=True, **fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
