"""What the UI makes of a refresh, a lost connection, a server that is killed and started again, and of errors."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import expect

from chatserve.testing import Faulty
from tests.browser.chat_page import ChatPage
from tests.server.harness import Served, script

Start = Callable[..., Served]
Open = Callable[..., ChatPage]

NUMBERS = " ".join(str(number) for number in range(1, 71))


@pytest.mark.full  # on a busy machine the page may be gone before it has stored where to go on
def test_a_refresh_in_the_middle_keeps_the_answer(start_server: Start, open_chat: Open) -> None:
    served = start_server(NUMBERS, delay=0.02)
    chat = open_chat(served)
    chat.send("Count")
    chat.wait_for_text()
    chat.page.wait_for_timeout(500)  # time to store where to go on
    chat.page.reload()
    chat.wait_for_text()
    assert served.stat("requests_running") == 1, "the refresh ended the request"
    chat.page.wait_for_timeout(300)
    chat.page.reload()
    chat.wait_for_text()
    chat.wait_until_done()
    assert chat.text_of_last() == NUMBERS
    chat.last.get_by_test_id("mode-tokens").click()
    expect(chat.by("token")).to_have_count(len(NUMBERS) + 1)
    assert served.stat("requests_finished") == 1
    expect(chat.last.get_by_test_id("problem")).to_have_count(0)


def test_a_refresh_after_the_end_shows_what_was_there(start_server: Start, open_chat: Open) -> None:
    chat = open_chat(start_server("All of it."))
    chat.ask("Hi")
    chat.page.reload()
    expect(chat.last.get_by_test_id("content")).to_have_text("All of it.")


def test_two_tabs_do_not_disturb_each_other(start_server: Start, open_chat: Open) -> None:
    served = start_server(NUMBERS, delay=0.01)
    one, two = open_chat(served), open_chat(served)
    one.send("Count")
    two.send("Count")
    one.wait_until_done()
    two.wait_until_done()
    assert one.text_of_last() == two.text_of_last() == NUMBERS


def test_an_error_on_the_way_is_told_and_can_be_retried(start_server: Start, open_chat: Open) -> None:
    is_broken = [True]

    def when(context: object) -> bool:
        return is_broken[0] and list(context)[-1] == ord("7")  # type: ignore[call-overload]

    served = start_server(Faulty(script("5 6 7 8"), when, RuntimeError("out of order")))
    chat = open_chat(served)
    chat.send("Count")
    expect(chat.last.get_by_test_id("problem")).to_contain_text("out of order")
    assert chat.text_of_last() == "5 6 7"
    is_broken[0] = False
    chat.by("retry").click()
    chat.wait_until_done()
    assert chat.text_of_last() == "5 6 7 8"
    assert served.is_idle()


def test_a_decoder_that_breaks_is_told(start_server: Start, open_chat: Open) -> None:
    chat = open_chat(start_server("x"), expects_problems=True)

    def choose() -> None:
        chat.pick("decoder", "shared-prefix")
        chat.fill("param-prefix", "nobody's")

    chat.settings(choose)
    chat.send("Hi")
    expect(chat.last.get_by_test_id("problem")).to_contain_text("is not registered")


@contextmanager
def process(port: int, delay: float, answer: str) -> Iterator[subprocess.Popen[str]]:
    """A server process that accepts connections."""
    command = [sys.executable, str(Path(__file__).with_name("fake_server.py")), str(port), str(delay), answer]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            assert running.stdout.readline().startswith("http://")
            yield running
        finally:
            running.kill()


def test_a_server_that_is_killed_and_started_again(open_chat: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    address = Served(None, None, "127.0.0.1", port, None, None)  # type: ignore[arg-type]
    with process(port, 0.05, NUMBERS) as first:
        chat = open_chat(address, expects_problems=True)
        chat.send("Count")
        chat.wait_for_text()
        first.send_signal(signal.SIGKILL)
        first.wait()
    expect(chat.by("phase")).to_contain_text("reconnecting")
    with process(port, 0.0, NUMBERS):
        problem = chat.last.get_by_test_id("problem")
        expect(problem).to_be_visible(timeout=20_000)
        part = chat.text_of_last()
        assert NUMBERS.startswith(part)
        assert part != ""
        problem.get_by_test_id("retry").click()
        chat.wait_until_done()
        assert chat.text_of_last() == NUMBERS


def test_a_server_that_is_not_there_is_told_and_comes_back(start_server: Start, open_chat: Open) -> None:
    served = start_server("Hello!")
    chat = open_chat(served, expects_problems=True)
    chat.page.context.set_offline(True)
    chat.send("Hi")
    expect(chat.last.get_by_test_id("problem")).to_be_visible()
    chat.page.context.set_offline(False)
    chat.by("retry").click()
    chat.wait_until_done()
    assert chat.text_of_last() == "Hello!"
