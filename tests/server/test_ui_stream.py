"""``/ui/stream``: named events with ids, coming back after a lost connection, stopping."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from chatserve.server import ui, ui_answer
from chatserve.testing import VOCAB_SIZE, Faulty, RandomLogits
from tests.server.harness import HI, Served, eventually, script
from tests.server.ui_events import Event, new_id, parse_event, reading

Start = Callable[..., Served]
LONG = "word " * 400
BODY = json.dumps({"messages": HI}).encode()


@pytest.fixture
def answer_id() -> str:
    return new_id()


def answered(served: Served, answer_id: str = "", **fields: Any) -> list[Event]:
    """All events of one answer."""
    with ask(served, answer_id, **fields) as reader:
        return list(reader)


def text_of(events: list[Event], choice: int = 0) -> str:
    deltas = [event.data for event in events if event.name == "delta"]
    return "".join(delta["text"] for delta in deltas if delta["choice"] == choice)


def ask(served: Served, answer_id: str = "", **fields: Any) -> Any:
    """A context in which an answer streams."""
    return reading(served.http, "PUT", f"ui/stream/{answer_id or new_id()}", json={"messages": HI, **fields})


def send_by_hand(served: Served, answer_id: str, part: bytes, length: int | None = None) -> socket.socket:
    """A connection that has sent a request, or one with only a part of its body of `length` bytes, and read nothing."""
    connection = socket.create_connection((served.host, served.port), timeout=10)
    head = f"PUT /ui/stream/{answer_id} HTTP/1.1\r\nHost: x\r\nContent-Length: {length or len(part)}\r\n\r\n"
    connection.sendall(head.encode() + part)
    return connection


def come_back(served: Served, answer_id: str, after: int) -> Any:
    return reading(served.http, "GET", f"ui/stream/{answer_id}", headers={"last-event-id": str(after)})


def test_an_answer_from_open_to_done(served: Served) -> None:
    events = answered(served, temperature=0)
    assert [event.id for event in events] == list(range(1, len(events) + 1))
    opening, closing = events[0], events[-1]
    assert opening.name == "open"
    assert opening.data.pop("request_id").startswith("ui-")
    assert opening.data == {
        "model": "fake",
        "decoder": "greedy",
        "n": 1,
        "prompt_tokens": 20,
        "max_model_len": 4096,
    }
    assert text_of(events) == "Hello!"
    assert [event.data["finish_reason"] for event in events if "finish_reason" in event.data] == ["stop"]
    states = [event.data["state"] for event in events if event.name == "status"]
    assert states[-1] == "decode"
    assert set(states) <= {"queued", "prefill", "decode"}
    assert closing.name == "done"
    assert closing.data["stopped"] is False
    usage = closing.data["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (20, 7, 27)
    timings = closing.data["timings"]
    assert timings.keys() == {"queue_s", "prefill_s", "decode_s", "ttft_s"}
    assert all(seconds >= 0 for seconds in timings.values())
    assert timings["ttft_s"] <= sum(timings[name] for name in ("queue_s", "prefill_s", "decode_s"))


def test_several_choices(start_server: Start) -> None:
    served = start_server(RandomLogits(VOCAB_SIZE, 3))
    fields: dict[str, Any] = {"n": 3, "max_tokens": 8, "seed": 5}
    whole = served.chat(**fields).json()["choices"]
    events = answered(served, **fields)
    assert events[0].data["n"] == 3
    assert events[0].data["decoder"] == "parallel"
    for choice in whole:
        assert text_of(events, choice["index"]) == choice["message"]["content"]
    finished = [event.data for event in events if "finish_reason" in event.data]
    assert sorted(delta["choice"] for delta in finished) == [0, 1, 2]


def test_tokens_with_alternatives(start_server: Start) -> None:
    served = start_server("né")
    events = answered(served, logprobs=True, top_logprobs=2, temperature=0)
    tokens = [token for event in events if event.name == "delta" for token in event.data.get("tokens", [])]
    assert bytes(byte for token in tokens for byte in token["bytes"]).decode() == text_of(events) == "né"
    first, second = tokens[0], tokens[1]
    assert (first["id"], first["text"], first["bytes"]) == (ord("n"), "n", [ord("n")])
    assert first["logprob"] == pytest.approx(0, abs=1e-6)
    assert first["top"][0]["id"] == ord("n")
    assert len(first["top"]) == 2
    assert first["top"][0].keys() == {"id", "text", "bytes", "logprob"}
    assert (second["text"], second["bytes"]) == ("\ufffd", [0xC3])
    assert (tokens[-1]["text"], tokens[-1]["bytes"]) == ("<|end|>", [])


def test_the_trace_of_a_search(start_server: Start) -> None:
    served = start_server(RandomLogits(VOCAB_SIZE, 3))
    search: dict[str, Any] = {"decoder": "beam", "decoder_params": {"width": 2}, "max_tokens": 4, "return_trace": True}
    whole = served.chat(**search).json()["trace"]
    events = answered(served, **search)
    assert [entry for event in events if event.name == "trace" for entry in event.data["entries"]] == whole
    assert len(whole) >= 4
    assert not any(event.name == "trace" for event in answered(served, **{**search, "return_trace": False}))


def test_a_message_is_continued(served: Served) -> None:
    half = [*HI, {"role": "assistant", "content": "Well, "}]
    whole = answered(served, messages=half)[0].data["prompt_tokens"]
    open_ended = answered(served, messages=half, continue_final_message=True)[0].data["prompt_tokens"]
    assert whole - open_ended == len("|") + len("|assistant\n")


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"temperature": -1}, 400, "temperature"),
        ({"model": "other"}, 404, "model"),
        ({"decoder": "nobody's"}, 400, "decoder"),
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, 400, "messages"),
        ({"messages": []}, 400, "messages"),
    ],
)
def test_refusals_are_statuses(served: Served, fields: dict[str, Any], status: int, param: str) -> None:
    response = served.http.put(f"ui/stream/{new_id()}", json={"messages": HI, **fields})
    assert response.status_code == status
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["param"] == param


def test_a_prompt_in_prefill_shows_how_far_it_is(start_server: Start) -> None:
    served = start_server("Hello!", delay=0.25)
    prompt = [{"role": "user", "content": "x" * 1500}]  # three chunks of 512
    with ask(served, messages=prompt, temperature=0) as reader:
        events = list(reader)
    prefill = [event.data for event in events if event.name == "status" and event.data["state"] == "prefill"]
    assert {status["prompt_tokens"] for status in prefill} == {1518}
    assert [status["prefilled"] for status in prefill] == [0, 512, 1024]
    names = [event.name for event in events]
    assert names.index("delta") > max(index for index, name in enumerate(names) if name == "status")
    timings = events[-1].data["timings"]
    assert timings["prefill_s"] > 0.7
    assert timings["decode_s"] > timings["prefill_s"] / 2  # six more steps


def test_a_waiting_request_knows_its_place(start_server: Start, answer_id: str) -> None:
    served = start_server(LONG, delay=0.01, num_blocks=40)
    prompt = [{"role": "user", "content": "x" * 400}]
    with (
        ask(served, answer_id, messages=prompt) as first,
        ask(served, messages=[{"role": "user", "content": "y" * 400}]) as second,
    ):
        assert second.until("status")[-1].data == {"state": "queued", "position": 1}
        first.next()
        assert served.http.delete(f"ui/stream/{answer_id}").status_code == 204
        assert second.until("delta")[-2].data["state"] == "decode"


def test_stop_ends_the_request_and_nothing_follows(start_server: Start, answer_id: str) -> None:  # case h5
    served = start_server(LONG, delay=0.01)
    with ask(served, answer_id) as reader:
        reader.until("delta")
        assert served.http.delete(f"ui/stream/{answer_id}").status_code == 204
        assert served.is_idle() or eventually(served.is_idle, 0.5)
        rest = list(reader)
    assert [event.name for event in rest[-1:]] == ["done"]
    assert rest[-1].data["stopped"] is True
    assert rest[-1].data["usage"]["completion_tokens"] < 1000
    again = served.http.delete(f"ui/stream/{answer_id}")
    assert (again.status_code, again.json()["error"]["code"]) == (404, "answer_not_kept")
    assert served.http.get(f"ui/stream/{answer_id}").status_code == 404


def test_stop_before_the_first_token(start_server: Start, answer_id: str) -> None:  # case h5
    served = start_server(LONG, delay=0.3)
    with ask(served, answer_id) as reader:
        reader.next()
        assert served.http.delete(f"ui/stream/{answer_id}").status_code == 204
        rest = list(reader)
    assert not any(event.name == "delta" for event in rest)
    assert rest[-1].data["timings"]["ttft_s"] is None
    assert eventually(served.is_idle)


@pytest.mark.parametrize("has_logprobs", [False, True])
def test_a_reader_who_comes_back_misses_nothing(start_server: Start, answer_id: str, has_logprobs: bool) -> None:
    answer = "Grüße, 世界! " * 20
    served = start_server(answer, delay=0.003)
    with ask(served, answer_id, temperature=0, logprobs=has_logprobs) as reader:
        events = reader.until("delta")
    while events[-1].name != "done":
        assert events[-1].id is not None
        with come_back(served, answer_id, events[-1].id) as reader:
            for event in reader:
                events.append(event)
                if event.id is not None and event.id % 50 == 0:
                    break
    assert [event.id for event in events] == list(range(1, len(events) + 1))
    assert text_of(events) == answer


def test_everything_can_be_read_again(start_server: Start, answer_id: str) -> None:
    served = start_server("Hello!", delay=0.01)
    first = answered(served, answer_id)
    with reading(served.http, "GET", f"ui/stream/{answer_id}?after=0") as reader:
        assert list(reader) == first
    with come_back(served, answer_id, len(first)) as reader:
        assert list(reader) == []


def test_a_new_reader_displaces_the_one_before(start_server: Start, answer_id: str) -> None:
    served = start_server(LONG, delay=0.01)
    with ask(served, answer_id) as first:
        first.until("delta")
        with come_back(served, answer_id, 0) as second:
            second.until("delta")
            assert all(event.name != "done" for event in first)  # it has come to its end
            served.http.delete(f"ui/stream/{answer_id}")


@pytest.mark.parametrize(
    ("after", "status"), [("x", 400), ("9" * 5000, 400), ("٣", 400), ("1000000", 404), ("-5", 200)]
)
def test_odd_event_ids(served: Served, answer_id: str, after: str, status: int) -> None:
    answered(served, answer_id)
    assert served.http.get(f"ui/stream/{answer_id}", params={"after": after}).status_code == status


def test_nobody_comes_back(
    start_server: Start, answer_id: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ui, "KEPT_SECONDS", 0.4)
    caplog.set_level(logging.INFO, "chatserve.server")
    served = start_server(LONG, delay=0.01)
    with ask(served, answer_id) as reader:
        reader.until("delta")
    assert not eventually(served.is_idle, 0.2)
    assert eventually(served.is_idle, 2)
    assert served.http.get(f"ui/stream/{answer_id}").status_code == 404
    assert any("nobody came back" in record.message for record in caplog.records)


def test_a_client_that_leaves_before_it_has_read_anything_can_come_back(start_server: Start, answer_id: str) -> None:
    served = start_server("Hello!", delay=0.05)
    connection = send_by_hand(served, answer_id, BODY)
    connection.close()
    with come_back(served, answer_id, 0) as reader:
        assert text_of(list(reader)) == "Hello!"
    assert eventually(served.is_idle)


def come_back_early(served: Served, answer_id: str, body: bytes) -> httpx.Response:
    """What a client gets that comes back while the body of its request is still on its way."""
    with (
        send_by_hand(served, answer_id, body[:5], len(body)) as connection,
        ThreadPoolExecutor() as threads,
    ):
        assert eventually(lambda: served.http.put(f"ui/stream/{answer_id}", content=b"{}").status_code == 409)
        coming_back = threads.submit(served.http.get, f"ui/stream/{answer_id}")
        connection.sendall(body[5:])
        return coming_back.result(10)


def test_a_client_that_comes_back_before_its_request_is_taken_waits_for_it(start_server: Start, answer_id: str) -> None:
    response = come_back_early(start_server("Hello!"), answer_id, BODY)
    assert response.text.startswith("id: 1\nevent: open\n")
    assert response.text.rstrip().split("\n")[-2] == "event: done"


def test_a_client_that_comes_back_to_a_request_that_is_refused_is_told_that_there_is_none(
    start_server: Start, answer_id: str
) -> None:
    served = start_server("Hello!")
    assert come_back_early(served, answer_id, b'{"messages": []}').status_code == 404
    assert text_of(answered(served, answer_id)) == "Hello!"  # the id is free again


@pytest.mark.parametrize("wrong", ["a" * 31, "a" * 65, "a" * 31 + ".", "a" * 31 + "%20", "é" * 32])
def test_ids_that_could_be_guessed_or_are_odd_are_refused(served: Served, wrong: str) -> None:
    response = served.http.put(f"ui/stream/{wrong}", json={"messages": HI})
    assert response.status_code == 400
    assert (response.json()["error"]["param"], response.json()["error"]["code"]) == ("id", "invalid_value")


def test_an_id_that_is_in_use_is_refused_and_the_answer_goes_on(start_server: Start, answer_id: str) -> None:
    served = start_server("Hello!", delay=0.03)
    with ask(served, answer_id) as reader:
        seen = reader.until("delta")
        again = served.http.put(f"ui/stream/{answer_id}", json={"messages": HI})
        assert (again.status_code, again.json()["error"]["code"]) == (409, "conflict")
        assert text_of([*seen, *reader]) == "Hello!"
    assert served.http.put(f"ui/stream/{answer_id}", json={"messages": HI}).status_code == 409
    assert served.http.delete(f"ui/stream/{answer_id}").status_code == 204
    assert text_of(answered(served, answer_id)) == "Hello!"


def test_the_engine_does_not_tell_the_ids_of_answers(start_server: Start, answer_id: str) -> None:
    served = start_server(LONG, delay=0.01)
    with ask(served, answer_id) as reader, reading(served.http, "GET", "ui/engine") as engine:
        request_id = reader.next().data["request_id"]
        state = engine.until("state")[0].data
        assert [request["id"] for request in state["requests"]] == [request_id]
        assert answer_id not in request_id
        served.http.delete(f"ui/stream/{answer_id}")


def test_unread_events_are_bounded(
    start_server: Start, answer_id: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ui_answer, "MAX_KEPT_BYTES", 4000)
    served = start_server(LONG, delay=0.002)
    with ask(served, answer_id) as reader:
        last_id = reader.until("delta")[-1].id or 0
    assert eventually(served.is_idle)
    assert any("bytes behind" in record.message for record in caplog.records)
    # The server may have sent a little more than the client took.
    answers = (served.http.get(f"ui/stream/{answer_id}", params={"after": last_id + more}) for more in range(20))
    again = next(answer for answer in answers if answer.status_code == 200)
    assert len(again.content) < 4500
    last = parse_event(again.text.split("\n\n")[-2])
    assert last is not None
    assert last.data["error"]["code"] == "slow_reader"


def test_events_that_were_dropped_cannot_be_had(
    start_server: Start, answer_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ui_answer, "MAX_KEPT_BYTES", 2000)
    answer = "word " * 30
    served = start_server(answer, delay=0.001)
    with ask(served, answer_id, temperature=0) as reader:
        events = list(reader)  # who reads along is not bounded
    assert text_of(events) == answer
    gone = served.http.get(f"ui/stream/{answer_id}")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "events_not_kept")
    with come_back(served, answer_id, len(events) - 3) as again:
        assert list(again) == events[-3:]


def test_what_breaks_on_the_way_is_an_error_event(start_server: Start) -> None:
    model = Faulty(script("Hello!"), lambda context: context[-1] == ord("l"), RuntimeError("out of order"))
    events = answered(start_server(model))
    assert text_of(events) == "Hel"
    assert events[-1].name == "error"
    error = events[-1].data["error"]
    assert (error["type"], error["code"]) == ("server_error", "model_error")
    assert "out of order" in error["message"]
