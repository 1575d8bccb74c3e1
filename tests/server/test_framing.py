"""Frames and log-probability lists on their own: any text survives, and constant parts are what they should be."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from chatserve.engine import Delta, PublishedToken, Usage
from chatserve.server.frames import ChatFrames, ChunkHead
from chatserve.server.logprobs import LegacyLogprobs
from chatserve.server.sse import encode_text
from chatserve.testing import byte_vocabulary

VOCABULARY = byte_vocabulary()
any_text = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('\u2028\u2029\u0085\r\n\x0b\x0c\\"é🦙'))


def chat_frames(mode: Any = "none", has_logprobs: bool = False) -> ChatFrames:
    return ChatFrames(ChunkHead("id\u2028", "kind", 5, 'mo"del', mode), VOCABULARY, has_logprobs=has_logprobs)


@given(any_text)
def test_text_is_one_line_of_json(text: str) -> None:
    encoded = encode_text(text)
    assert json.loads(encoded) == text
    assert len(encoded.decode().splitlines()) == 1


@given(any_text.filter(bool), st.integers(0, 200))
def test_a_delta_is_one_chunk(text: str, choice: int) -> None:
    frame = chat_frames().delta(Delta(choice, text, ()), None)
    assert frame.startswith(b"data: ")
    assert frame.endswith(b"\n\n")
    chunk = json.loads(frame.removeprefix(b"data: "))
    expected = {"index": choice, "delta": {"content": text}, "logprobs": None, "finish_reason": None}
    assert chunk["choices"] == [expected]
    assert (chunk["id"], chunk["object"], chunk["created"], chunk["model"]) == ("id\u2028", "kind", 5, 'mo"del')


def test_a_delta_without_news_is_no_chunk() -> None:
    token = PublishedToken(65, b"", -1.0)
    assert chat_frames().delta(Delta(0, "", (token,)), None) == b""
    assert chat_frames(has_logprobs=True).delta(Delta(0, "", ()), None) == b""


def test_a_trace_rides_on_an_ordinary_chunk() -> None:
    frame = chat_frames("final").delta(Delta(0, "", (), trace=({"beam": "\u2028"},)), None)
    chunk = json.loads(frame.removeprefix(b"data: "))
    assert chunk["trace"] == [{"beam": "\u2028"}]
    assert chunk["choices"][0]["delta"] == {"content": ""}
    assert chunk["usage"] is None
    assert "\u2028" not in frame.decode()


def test_usage_names_cached_and_computed_tokens() -> None:
    chunk = json.loads(chat_frames("final").usage(Usage(7, 3, 4, 12)).removeprefix(b"data: "))
    assert chunk["choices"] == []
    assert chunk["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "total_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"computed_tokens": 12},
    }


def test_impossible_and_forced_tokens_are_numbers_in_json() -> None:
    tokens = (PublishedToken(65, b"A", float("-inf")), PublishedToken(66, b"B", None))
    frame = chat_frames(has_logprobs=True).delta(Delta(0, "AB", tokens), None)
    items = json.loads(frame.removeprefix(b"data: "))["choices"][0]["logprobs"]["content"]
    assert [item["logprob"] for item in items] == [-9999.0, 0.0]


@given(any_text.filter(bool), st.data())
def test_offsets_are_the_characters_complete_before_each_token(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    cut = data.draw(st.integers(0, len(raw)))
    tokens = [PublishedToken(byte, bytes([byte]), -1.0) for byte in raw]
    builder = LegacyLogprobs(VOCABULARY)
    offsets = builder.answer(tokens[:cut])["text_offset"] + builder.answer(tokens[cut:])["text_offset"]
    assert offsets == [len(raw[:end].decode("utf-8", "ignore")) for end in range(len(raw))]
