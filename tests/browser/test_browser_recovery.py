"""What the UI makes of a refresh, a lost connection, a server that is killed and started again, and of errors."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from chatserve.testing import Faulty
from tests.browser.chat_page import ChatPage
from tests.browser.gate import Gate
from tests.server.harness import Served, eventually, script
from tests.server.server_process import starting_process

Start = Callable[..., Served]
Open = Callable[..., ChatPage]
Hold = Callable[[Served], Gate]

# Presses the button and leaves, both from within the page: nothing of the test's own comes between.
SEND_AND_RELOAD = """milliseconds => {
    document.querySelector('[data-testid=send]').click();
    if (milliseconds > 0) setTimeout(() => location.reload(), milliseconds);
    else location.reload();
}"""
NUMBERS = " ".join(str(number) for number in range(1, 71))


@pytest.mark.parametrize("milliseconds", [0, 10, 50, 100, 300, 1000])
def test_a_reload_at_any_moment_after_send_loses_nothing(
    start_server: Start, open_chat: Open, gate: Hold, milliseconds: int
) -> None:
    served = start_server("The answer.")
    model = gate(served)
    chat = open_chat(served, expects_problems=True)
    chat.composer.fill("The question")
    with chat.page.expect_event("load"):
        chat.page.evaluate(SEND_AND_RELOAD, milliseconds)
    expect(chat.questions.last.get_by_test_id("content")).to_have_text("The question")
    retry = chat.by("retry")
    expect(chat.by("stop").or_(retry)).to_be_visible()
    assert eventually(lambda: served.stat("requests_running") == 1 or retry.is_visible(), 10)
    if retry.is_visible():  # the page was left before it could send
        assert served.stat("requests_running") == 0
        expect(chat.last.get_by_test_id("problem")).to_contain_text("before it could be sent")
        retry.click()
    model.open()
    chat.wait_until_done()
    assert chat.text_of_last() == "The answer."
    expect(chat.questions).to_have_count(1)
    expect(chat.answers).to_have_count(1)
    assert served.stat("requests_finished") == 1


def test_a_reload_before_the_first_token_goes_on_with_the_same_request(
    start_server: Start, open_chat: Open, gate: Hold
) -> None:
    served = start_server(NUMBERS)
    model = gate(served)
    chat = open_chat(served)
    chat.send("Count")
    assert eventually(lambda: served.stat("requests_running") == 1, 10)
    chat.page.reload()
    expect(chat.by("stop")).to_be_visible()
    model.open()
    chat.wait_until_done()
    assert chat.text_of_last() == NUMBERS
    assert served.stat("requests_finished") == 1


def test_a_refresh_in_the_middle_keeps_the_answer(start_server: Start, open_chat: Open, gate: Hold) -> None:
    served = start_server(NUMBERS)
    model = gate(served)
    chat = open_chat(served)
    chat.send("Count")
    for part in ("1 2 3 4", "1 2 3 4 5 6 7 8"):
        model.allow(8)
        expect(chat.last.get_by_test_id("content")).to_contain_text(part)
        chat.page.reload()
        expect(chat.last.get_by_test_id("content")).to_contain_text(part)
    assert served.stat("requests_running") == 1, "the refresh ended the request"
    model.open()
    chat.wait_until_done()
    assert chat.text_of_last() == NUMBERS
    chat.last.get_by_test_id("mode-tokens").click()
    expect(chat.by("token")).to_have_count(len(NUMBERS) + 1)
    assert served.stat("requests_finished") == 1
    expect(chat.last.get_by_test_id("problem")).to_have_count(0)


def test_candidates_survive_a_refresh(start_server: Start, open_chat: Open, gate: Hold) -> None:
    served = start_server(NUMBERS)
    model = gate(served)
    chat = open_chat(served)
    chat.settings(lambda: chat.pick("preset", "Three candidates"))
    chat.send("Count")
    model.allow(8)
    contents = chat.by("candidate").get_by_test_id("content")
    expect(contents).to_contain_text(["1 2 3", "1 2 3", "1 2 3"])
    chat.page.reload()
    expect(contents).to_contain_text(["1 2 3", "1 2 3", "1 2 3"])
    model.open()
    chat.wait_until_done()
    assert [content.inner_text() for content in contents.all()] == [NUMBERS] * 3


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


def test_a_server_that_is_killed_and_started_again(open_chat: Open) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    address = Served(None, None, "127.0.0.1", port, None, None, None)  # type: ignore[arg-type]
    with starting_process(port, delay=0.05, answer=NUMBERS) as first:
        first.wait_until_ready()
        chat = open_chat(address, expects_problems=True)
        chat.send("Count")
        chat.wait_for_text()
        first.process.kill()
        first.process.wait()
    expect(chat.by("phase")).to_contain_text("reconnecting")
    with starting_process(port, answer=NUMBERS) as second:
        second.wait_until_ready()
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
