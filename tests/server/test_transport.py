"""Disconnects, keep-alives, errors in the middle of a stream, headers, and that nothing blocks the event loop."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from chatserve.testing import Faulty
from tests.server.harness import HI, Served, events, eventually, script, text_of

Start = Callable[..., Served]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def read_until(connection: socket.socket, marker: bytes, count: int = 1) -> bytes:
    received = b""
    while received.count(marker) < count:
        news = connection.recv(65536)
        assert news, received
        received += news
    return received


def has_stopped(served: Served) -> bool:
    """Within two seconds everything is released; after that, the model is not run again."""
    if not eventually(served.is_idle):
        return False
    steps = served.runner.num_forwards
    time.sleep(0.1)
    return served.runner.num_forwards == steps


ENDLESS = {"messages": HI, "max_tokens": 2000, "ignore_eos": True}


def test_closing_a_stream_stops_the_request(start_server: Start) -> None:  # case f1
    served = start_server(delay=0.01)
    connection = served.connect(CHAT, {**ENDLESS, "stream": True})
    read_until(connection, b"data: ", 4)
    assert served.stat("requests_running") == 1
    connection.close()
    assert has_stopped(served)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_closing_before_a_whole_answer_stops_the_request(start_server: Start, path: str) -> None:  # case f1
    served = start_server(delay=0.01)
    connection = served.connect(path, {**ENDLESS, "prompt": ["a", "b"]})
    assert eventually(lambda: served.stat("requests_running") >= 1)
    connection.close()
    assert has_stopped(served)


@pytest.mark.parametrize("is_stream", [False, True])
def test_closing_during_a_long_prefill_stops_the_request(start_server: Start, is_stream: bool) -> None:  # case f1
    served = start_server(delay=0.2)
    connection = served.connect(COMPLETIONS, {"prompt": "x" * 3900, "stream": is_stream})
    assert eventually(lambda: served.runner.num_forwards == 2)
    connection.close()
    assert has_stopped(served)
    assert served.runner.num_forwards <= 4, "the 3,900 tokens would have taken 8 steps of 512"


@pytest.mark.parametrize("is_stream", [False, True])
def test_closing_while_queued_takes_the_request_from_the_queue(start_server: Start, is_stream: bool) -> None:
    served = start_server(delay=0.01, num_blocks=8)
    first = served.connect(COMPLETIONS, {"prompt": "y" * 100, "max_tokens": 20, "ignore_eos": True})
    assert eventually(lambda: served.stat("requests_running") == 1)
    second = served.connect(COMPLETIONS, {"prompt": "z" * 100, "stream": is_stream})
    assert eventually(lambda: served.stat("requests_waiting") == 1)
    second.close()
    assert eventually(lambda: served.stat("requests_waiting") == 0, 0.5)
    first.close()
    assert has_stopped(served)


def test_a_prompt_being_tokenised_when_its_client_leaves(start_server: Start) -> None:
    served = start_server(max_model_len=60_000, num_blocks=4096)
    served.connect(CHAT, {"messages": [{"role": "user", "content": "word " * 2_000}], "ignore_eos": True}).close()
    assert served.chat().status_code == 200
    assert has_stopped(served)


class SlowStart:
    """Answers "Hello!" after a pause in front of the first token."""

    def __init__(self, pause: float) -> None:
        self._answer = script("Hello!")
        self._pause = pause
        self.vocab_size = self._answer.vocab_size

    def __call__(self, context: np.ndarray) -> np.ndarray:
        time.sleep(self._pause)
        self._pause = 0
        return self._answer(context)


def test_a_comment_keeps_a_silent_stream_alive(start_server: Start) -> None:  # case f7
    served = start_server(SlowStart(0.7), keepalive_interval=0.2)
    body = served.chat(stream=True).content
    before_text = body[: body.index(b'"content":"H"')]
    assert before_text.count(b": keep-alive\n\n") == 3
    assert before_text.startswith(b'data: {"id"'), "the role chunk goes out on acceptance"
    assert text_of(events(body)) == "Hello!"


def test_an_empty_chunk_keeps_a_silent_stream_alive(start_server: Start) -> None:
    served = start_server(SlowStart(0.5), keepalive="chunk", keepalive_interval=0.2)
    chunks = events(served.chat(stream=True).content)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [choice["finish_reason"] for choice in choices if choice["delta"] == {}] == [None, None, "stop"]
    assert text_of(chunks) == "Hello!"
    completion = start_server(SlowStart(0.5), keepalive="chunk", keepalive_interval=0.2).complete(stream=True)
    assert text_of(events(completion.content)) == "Hello!"


def test_keep_alives_can_be_switched_off(start_server: Start) -> None:
    served = start_server(SlowStart(0.5), keepalive="off", keepalive_interval=0.1)
    assert b"\n: " not in served.chat(stream=True).content


def test_the_client_survives_keep_alives(start_server: Start) -> None:  # case f7
    for mode in ("comment", "chunk"):
        served = start_server(SlowStart(0.5), keepalive=mode, keepalive_interval=0.1)
        stream = served.openai.chat.completions.create(model="fake", messages=HI, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "Hello!"


def test_a_request_that_breaks_in_the_middle(start_server: Start, caplog: pytest.LogCaptureFixture) -> None:
    broken = Faulty(script("Hello!"), lambda context: context[-1] == ord("l"), ValueError("out of order"))
    served = start_server(broken)
    chunks = events(served.chat(stream=True).content)
    assert text_of(chunks[:-1]) == "Hel"
    error = chunks[-1]["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "server_error"
    whole = served.chat()
    assert whole.status_code == 500
    assert whole.json()["error"]["type"] == "server_error"
    with pytest.raises(Exception, match=error["message"][:20]):
        list(served.openai.chat.completions.create(model="fake", messages=HI, stream=True))
    assert served.is_idle()
    assert "ASGI" not in caplog.text


def test_one_of_many_prompts_that_breaks_ends_the_stream_with_its_error(start_server: Start) -> None:
    broken = Faulty(script("x" * 50), lambda context: context[0] == ord("b") and len(context) > 4, ValueError("no"))
    served = start_server(broken, delay=0.002)
    chunks = events(served.complete(prompt=["a", "b", "c"], stream=True).content)
    assert "error" in chunks[-1]
    assert has_stopped(served)


def test_a_fault_of_ours_is_a_500_in_the_usual_shape(
    start_server: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = start_server()
    monkeypatch.setattr(served.engine, "list_decoders", lambda: 1 / 0)
    response = served.http.get("/v1/decoders")
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "Internal error; the server log has the details."
    assert response.headers["x-should-retry"] == "false"
    assert response.headers["x-request-id"]
    assert "ZeroDivisionError" in caplog.text
    assert served.chat().status_code == 200


@pytest.mark.parametrize("sent", ["abc-123", "a" * 128])
def test_a_sane_request_id_comes_back(served: Served, sent: str) -> None:
    headers = {"x-request-id": sent}
    assert served.http.get("/health", headers=headers).headers["x-request-id"] == sent
    assert served.http.get("/nothing", headers=headers).headers["x-request-id"] == sent


@pytest.mark.parametrize("sent", ["", "a" * 129, "a b", 'a"b', "a\tb", "é"])
def test_any_other_request_id_is_replaced(served: Served, sent: str) -> None:
    raw = served.http.get("/health", headers=[(b"x-request-id", sent.encode())]).headers["x-request-id"]
    assert raw.startswith("req-")


def test_the_access_log(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "chatserve.access"):
        served.http.post(CHAT, json={"messages": HI}, headers={"x-request-id": "mine"})
        served.http.get("/nothing", headers={"x-request-id": "other"})
    lines = [record.getMessage() for record in caplog.records if record.name == "chatserve.access"]
    assert lines[0].startswith("mine POST /v1/chat/completions 200 ")
    assert lines[0].endswith("ms")
    assert lines[1].startswith("other GET /nothing 404 ")


def test_no_path_breaks_a_log_line(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "chatserve.access"):
        served.http.get("/a%0aforged%20line")
    assert "/a%0aforged%20line 404" in caplog.text


def test_a_client_that_left_is_logged_as_499(start_server: Start, caplog: pytest.LogCaptureFixture) -> None:
    served = start_server(delay=0.01)
    with caplog.at_level(logging.INFO, "chatserve.access"):
        connection = served.connect(CHAT, ENDLESS)
        assert eventually(lambda: served.stat("requests_running") == 1)
        connection.close()
        assert eventually(lambda: " 499 " in caplog.text)


def test_cross_origin_requests_only_from_the_list(start_server: Start) -> None:
    origin = {"Origin": "https://ui.example"}
    preflight = {**origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    closed = start_server()
    assert "access-control-allow-origin" not in closed.http.get("/health", headers=origin).headers
    assert closed.http.options(CHAT, headers=preflight).status_code == 405
    served = start_server(cors_origins=("https://ui.example",))
    allowed = served.http.options(CHAT, headers=preflight)
    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == "https://ui.example"
    for response in (served.http.get("/health", headers=origin), served.http.get("/nothing", headers=origin)):
        assert response.headers["access-control-allow-origin"] == "https://ui.example"
    elsewhere = served.http.get("/health", headers={"Origin": "https://elsewhere.example"})
    assert "access-control-allow-origin" not in elsewhere.headers


def test_a_huge_prompt_delays_nobody(start_server: Start) -> None:  # case f3
    served = start_server("x" * 3000, delay=0.002, max_body_bytes=8_000_000)
    gaps, latencies, done = [0.0], [0.0], threading.Event()

    def follow() -> None:
        with served.http.stream("POST", CHAT, json={"messages": HI, "stream": True}) as response:
            last = time.perf_counter()
            for _ in response.iter_bytes():
                gaps.append(time.perf_counter() - last)
                last = time.perf_counter()
                if done.is_set():
                    break

    def probe() -> None:
        while not done.wait(0.05):
            begun = time.perf_counter()
            assert served.http.get("/health").status_code == 200
            latencies.append(time.perf_counter() - begun)

    others = [threading.Thread(target=follow), threading.Thread(target=probe)]
    for thread in others:
        thread.start()
    assert eventually(lambda: served.stat("requests_running") == 1)
    begun = time.perf_counter()
    response = served.chat(messages=[{"role": "user", "content": "all work and no play " * 238_000}])
    took = time.perf_counter() - begun
    done.set()
    for thread in others:
        thread.join()
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    bearable = max(0.25, took / 2)
    assert max(latencies) < bearable, latencies
    assert max(gaps) < bearable, gaps


def test_an_answer_that_takes_longer_than_its_timeout_is_a_504_or_an_error_frame(start_server: Start) -> None:
    served = start_server("x" * 4000, delay=0.01)
    response = served.chat(timeout=0.2)
    assert response.status_code == 504
    assert response.json()["error"]["code"] == "deadline_exceeded"
    assert response.headers["x-should-retry"] == "false"
    frames = events(served.chat(timeout=0.2, stream=True).content)
    assert frames[-1]["error"]["code"] == "deadline_exceeded"
    assert served.engine.stats()["blocks_used"] == 0
