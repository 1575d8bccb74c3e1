"""The UI behind a proxy below a path, and on a server that wants an API key."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Route, expect

from tests.browser.axe import serious_issues
from tests.browser.chat_page import ChatPage
from tests.browser.gate import Gate
from tests.server.harness import Served

Start = Callable[..., Served]
Open = Callable[..., ChatPage]
Hold = Callable[[Served], Gate]


def test_below_a_root_path(start_server: Start, open_chat: Open, gate: Hold) -> None:
    served = start_server("Hello! " * 12, root_path="/below")
    model = gate(served)
    chat = open_chat(served)
    base = f"http://{served.host}:{served.port}"

    def strip(route: Route) -> None:
        route.continue_(url=route.request.url.replace(f"{base}/below/", f"{base}/"))

    chat.page.context.route(f"{base}/below/**", strip)
    chat.requests.clear()
    chat.open("/below/")
    chat.send("Hi")
    model.allow(20)
    chat.wait_for_text()
    chat.page.reload()
    chat.wait_for_text()
    model.open()
    chat.wait_until_done()
    assert chat.text_of_last().split() == ["Hello!"] * 12
    chat.by("toggle-engine").click()
    expect(chat.by("no-requests")).to_be_visible()
    assert [url for url in chat.requests if not url.startswith(f"{base}/below/")] == []


def test_a_server_that_wants_a_key(start_server: Start, open_chat: Open) -> None:
    chat = open_chat(start_server("Hello!", api_keys=("secret",)), expects_problems=True)
    form = chat.by("key-form")
    field = form.get_by_label("This server wants an API key.")
    expect(field).to_be_focused()
    for key in ("wrong", "secret"):
        chat.page.keyboard.type(key)
        chat.page.keyboard.press("Enter")
        if key == "wrong":
            field = form.get_by_label("The server refused this API key.")
            expect(field).to_be_focused()
            assert serious_issues(chat) == []
    expect(form).to_have_count(0)
    expect(chat.by("model")).to_have_text("fake")
    assert chat.ask("Hi") == "Hello!"
    chat.page.reload()
    expect(chat.by("model")).to_have_text("fake")
    expect(form).to_have_count(0)
