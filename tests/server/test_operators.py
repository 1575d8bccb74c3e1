"""What operators rely on: keys, metrics, TLS, a proxy's path, logs for machines, and slow or broken clients."""

from __future__ import annotations

import json
import logging
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from chatserve.config import Config
from chatserve.errors import ConfigError
from chatserve.server import serve
from chatserve.server.authentication import api_keys
from chatserve.server.json_log import JsonFormatter
from tests.server.harness import HI, Served, events, eventually, serve_fake

Start = Callable[..., Served]


# keys


@pytest.fixture(scope="module")
def locked() -> Iterator[Served]:
    with serve_fake(api_keys=("first-key", "zweiter-schlüssel")) as running:
        yield running


@pytest.mark.parametrize("path", ["/v1/models", "/v1/decoders", "/metrics", "/no/such/route", "/ui/engine"])
@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer wrong",
        "Bearer first-ke",
        "Bearer first-key2",
        "Basic first-key",
        "first-key",
    ],
)
def test_without_a_key_nothing_is_told(locked: Served, path: str, header: str | None) -> None:
    response = locked.http.get(path, headers={} if header is None else {"Authorization": header})
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.headers["x-request-id"]
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == "invalid_api_key"


@pytest.mark.parametrize("key", ["first-key", "zweiter-schlüssel"])
def test_every_key_lets_in(locked: Served, key: str) -> None:
    header = b"Bearer " + key.encode()
    assert locked.http.get("/v1/models", headers={b"Authorization": header}).status_code == 200


def test_the_openai_client_with_and_without_its_key(locked: Served) -> None:
    assert locked.openai.with_options(api_key="first-key").models.list().data
    with pytest.raises(openai.AuthenticationError):
        locked.openai.with_options(api_key="other").models.list()


@pytest.mark.parametrize("path", ["/health", "/"])
def test_what_needs_no_key(locked: Served, path: str) -> None:
    assert locked.http.get(path).status_code == 200


def test_keys_are_not_logged(locked: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        locked.http.get("/v1/models", headers={"Authorization": "Bearer first-key"})
        locked.http.get("/v1/models", headers={"Authorization": "Bearer guess-of-a-key"})
        assert eventually(lambda: len([r for r in caplog.records if r.name == "chatserve.access"]) == 2)
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("chatserve")]
    assert not any("first-key" in line or "guess-of-a-key" in line for line in ours)


def test_keys_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("one\n\n  two  \n")
    assert api_keys(Config(api_keys=("zero",), api_key_file=str(file))) == ("zero", "one", "two")
    file.write_text("\n")
    with pytest.raises(ConfigError, match="api_key_file"):
        api_keys(Config(api_key_file=str(file)))
    with pytest.raises(ConfigError, match="api_key_file"):
        api_keys(Config(api_key_file=str(tmp_path / "missing")))


# metrics


def metrics(served: Served) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """All samples by name and labels, as Prometheus' own parser reads them; the model's label is left out."""
    response = served.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    found = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "fake"
            found[sample.name, frozenset(labels.items())] = sample.value
    return found


def test_metrics_count_what_happened(start_server: Start) -> None:
    served = start_server("Hello!")
    served.chat(n=2)
    served.chat(temperature=0)
    served.chat(temperature=0, max_tokens=2)
    found = metrics(served)

    def value(name: str, **labels: str) -> float:
        return found["chatserve:" + name, frozenset(labels.items())]

    assert value("prompt_tokens_total") == 3 * 20
    assert value("generation_tokens_total") == 3 * 7 + 2
    assert value("num_requests_running") == value("num_requests_waiting") == 0
    assert value("kv_cache_usage_perc") == 0
    assert value("num_kv_blocks") == 512
    assert value("prefix_cache_hits_total") > 0
    assert value("request_success_total", finished_reason="stop", decoder="parallel") == 2
    assert value("request_success_total", finished_reason="stop", decoder="greedy") == 1
    assert value("request_success_total", finished_reason="length", decoder="greedy") == 1
    assert value("time_to_first_token_seconds_count", decoder="greedy") == 2
    assert value("inter_token_latency_seconds_count", decoder="greedy") == 6 + 1
    assert value("e2e_request_latency_seconds_count", decoder="parallel") == 1
    assert value("e2e_request_latency_seconds_sum", decoder="parallel") > 0
    assert value("engine_status", status="ready") == 1
    assert value("step_seconds_total", part="forward") > 0
    assert value("decoder_seconds_total", decoder="greedy") > 0
    assert value("steps_total") > 0


def test_buckets_are_cumulative(start_server: Start) -> None:
    served = start_server("Hello!", delay=0.03)
    served.chat(temperature=0)
    buckets = [
        (float(dict(labels)["le"]), value)
        for (name, labels), value in metrics(served).items()
        if name == "chatserve:inter_token_latency_seconds_bucket"
    ]
    counts = [count for _, count in sorted(buckets)]
    assert counts == sorted(counts)
    assert counts[-1] == 6
    assert dict(buckets)[0.01] == 0, "each token took 30 ms at least"


def test_an_answer_that_is_abandoned_is_counted(start_server: Start) -> None:
    served = start_server("x" * 3000, delay=0.01)
    served.connect("/v1/chat/completions", {"messages": HI, "temperature": 0}).close()
    key = ("chatserve:request_success_total", frozenset({("finished_reason", "abort"), ("decoder", "greedy")}))
    assert eventually(lambda: metrics(served).get(key) == 1)


def test_requests_are_counted_by_route(start_server: Start) -> None:
    served = start_server(api_keys=("key",))
    key = {"Authorization": "Bearer key"}
    for _ in range(2):
        served.http.post("/v1/chat/completions", json={"messages": HI}, headers=key)
    served.http.post("/v1/chat/completions", json={"messages": HI, "temperature": -1}, headers=key)
    served.http.post("/v1/chat/completions", json={"messages": HI, "stream": True}, headers=key)
    served.http.get("/v1/models/fake", headers=key)
    served.http.get("/v1/models/other", headers=key)
    served.http.put("/v1/completions", headers=key)
    for path in ("/made/up/1", "/made/up/2"):
        served.http.get(path, headers=key)
    served.http.get("/v1/models")
    served.http.headers.update(key)
    found = metrics(served)
    counts = {
        tuple(sorted(labels)): value for (name, labels), value in found.items() if name.endswith("http_requests_total")
    }

    def count(method: str, route: str, status: str) -> float:
        return counts.pop((("method", method), ("route", route), ("status", status)))

    assert count("POST", "/v1/chat/completions", "200") == 3
    assert count("POST", "/v1/chat/completions", "400") == 1
    assert count("GET", "/v1/models/{id:path}", "200") == count("GET", "/v1/models/{id:path}", "404") == 1
    assert count("PUT", "/v1/completions", "405") == 1
    assert count("GET", "", "404") == 2
    assert count("GET", "", "401") == 1
    assert counts == {}
    chat = frozenset({("method", "POST"), ("route", "/v1/chat/completions")})
    assert found["chatserve:http_request_duration_seconds_count", chat] == 4
    assert found["chatserve:http_request_duration_seconds_sum", chat] > 0


# TLS, proxies, logs


def test_tls(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    subprocess.run([*command, *subject], check=True, capture_output=True)
    trust = ssl.create_default_context(cafile=str(certificate))
    with (
        serve_fake(ssl_certfile=str(certificate), ssl_keyfile=str(key)) as served,
        httpx.Client(verify=trust, trust_env=False, timeout=20) as client,
    ):
        base = f"https://127.0.0.1:{served.port}"
        assert client.get(f"{base}/health").status_code == 200
        assert client.post(f"{base}/v1/chat/completions", json={"messages": HI}).status_code == 200


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"ssl_certfile": "/missing.pem"}, "ssl_certfile"),
        ({"ssl_keyfile": "/missing.pem"}, "ssl_keyfile"),
        ({"api_key_file": "/missing"}, "api_key_file"),
    ],
)
def test_files_that_cannot_be_used_are_told_before_anything_is_loaded(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        serve(lambda: pytest.fail("the model was loaded"), Config(port=0, **settings))


def test_behind_a_proxy_that_adds_a_path(start_server: Start) -> None:
    """The proxy has taken the path off: routes are found as before, with keys and without."""
    served = start_server(root_path="/llm", api_keys=("key",))
    assert served.http.get("/health").status_code == 200
    assert served.http.get("/v1/models").status_code == 401
    assert served.http.get("/v1/models", headers={"Authorization": "Bearer key"}).status_code == 200
    assert served.http.get("/openapi.json").json()["servers"] == [{"url": "/llm"}]


def test_log_lines_for_machines(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "chatserve.access"):
        served.http.get("/v1/models/no\u2028such", headers={"x-request-id": "my-id"})
        assert eventually(lambda: any(record.name == "chatserve.access" for record in caplog.records))
    [record] = [record for record in caplog.records if record.name == "chatserve.access"]
    text = JsonFormatter().format(record)
    assert "\n" not in text
    line = json.loads(text)
    assert line["level"] == "info"
    assert line["logger"] == "chatserve.access"
    assert line["request_id"] == "my-id"
    assert (line["method"], line["status"], line["client"]) == ("GET", 404, "127.0.0.1")
    assert line["path"] == "/v1/models/no%E2%80%A8such"
    assert line["milliseconds"] >= 0


def test_exceptions_in_log_lines_for_machines() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        record = logging.makeLogRecord({"msg": "broke: %s", "args": ("x",), "exc_info": (type(error), error, None)})
    line = json.loads(JsonFormatter().format(record))
    assert line["message"] == "broke: x"
    assert "ValueError: two" in line["exception"]


# clients that are slow or broken


def exchange(served: Served, data: bytes) -> bytes:
    """What comes back until the server closes the connection."""
    with socket.create_connection((served.host, served.port), timeout=10) as connection:
        connection.sendall(data)
        received = b""
        while more := connection.recv(65536):
            received += more
    return received


def test_half_a_body_has_a_time_limit(start_server: Start) -> None:
    served = start_server(body_timeout=0.3)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
    started = time.monotonic()
    answer = exchange(served, head + b'{"messages": ')
    assert 0.3 <= time.monotonic() - started < 5
    status, body = answer.split(b"\r\n", 1)[0], answer.split(b"\r\n\r\n", 1)[1]
    assert b"408" in status
    assert json.loads(body)["error"]["code"] == "body_timeout"


@pytest.mark.parametrize("data", [b"", b"GET /health HTTP/1.1\r\nHost: x\r\n"])
def test_half_a_head_has_a_time_limit(start_server: Start, data: bytes) -> None:
    served = start_server(body_timeout=0.3)
    started = time.monotonic()
    assert exchange(served, data) == b""
    assert 0.3 <= time.monotonic() - started < 5


def test_an_answer_may_take_longer_than_a_head(start_server: Start) -> None:
    served = start_server("x" * 60, delay=0.01, body_timeout=0.3)
    for _ in range(3):
        assert served.chat(max_tokens=60).status_code == 200


def test_a_client_that_does_not_read_is_cut_off(start_server: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Others go on; its request ends, and the log says why."""
    served = start_server("x" * 3000, stall_timeout=0.5, num_blocks=2000)
    stalled = socket.socket()
    stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stalled.connect((served.host, served.port))
    body = json.dumps({"messages": HI, "stream": True, "n": 8, "logprobs": True, "top_logprobs": 20}).encode()
    with caplog.at_level(logging.WARNING, "chatserve.server"):
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        stalled.sendall(head.encode() + body)
        assert eventually(lambda: served.stat("requests_running") == 1)
        assert served.chat(max_tokens=5).status_code == 200
        assert eventually(lambda: any("cut off" in record.getMessage() for record in caplog.records), 30)
        assert served.stat("requests_finished") == 1, "the one that did not read was still running"
        assert eventually(served.is_idle)
    stalled.close()


@pytest.mark.parametrize(
    "data", [b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n"]
)
def test_malformed_http_is_answered_in_the_usual_shape(served: Served, data: bytes) -> None:
    head, body = exchange(served, data).split(b"\r\n\r\n", 1)
    assert head.startswith(b"HTTP/1.1 400 ")
    assert b"content-type: application/json" in head
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("depth", [*range(120, 131), 900, 977, 990, 5000])
@pytest.mark.parametrize("where", ["unknown", "decoder_params", "guided_json"])
def test_nesting_is_bounded(served: Served, where: str, depth: int) -> None:
    """Whatever reads a body later has its own limits; exactly 977 levels once were a server error."""
    nested = '{"a":' * depth + "1" + "}" * depth
    body = f'{{"messages": {json.dumps(HI)}, "max_tokens": 1, "decoder": "greedy", "{where}": {nested}}}'
    response = served.http.post("/v1/chat/completions", content=body)
    assert response.status_code in ((200, 400) if depth < 128 else (400,))


def test_brackets_in_texts_are_no_nesting(served: Served) -> None:
    text = "{[" * 300 + '"\\' + "{" * 300
    assert served.chat(messages=[{"role": "user", "content": text}]).status_code == 200


def test_a_stream_that_a_shutdown_ends_says_draining() -> None:
    with serve_fake("x" * 3000, delay=0.02, shutdown_grace=0.1) as served:
        connection = served.connect("/v1/chat/completions", {"messages": HI, "stream": True})
        assert eventually(lambda: served.stat("requests_running") == 1)
    received = b""
    while more := connection.recv(65536):
        received += more
    connection.close()
    body = b"".join(line for line in received.split(b"\r\n\r\n", 1)[1].split(b"\r\n")[1::2])
    error = events(body)[-1]["error"]
    assert error["code"] == "draining"
