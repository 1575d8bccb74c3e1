"""Chromium, the built UI, and servers for it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, sync_playwright

from chatserve.server import page as served_page
from tests.browser.chat_page import ChatPage
from tests.browser.gate import Gate
from tests.server.harness import Served, fake_servers

FLAGS = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    "--no-sandbox",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium as the system has it. For each file anew: Playwright's loop must not run beside asynchronous tests."""
    executable = shutil.which("chromium")
    if executable is None:
        if os.environ.get("CI"):
            pytest.fail("CI must have Chromium; on Debian: apt install chromium")
        pytest.skip("no Chromium on this machine; on Debian: apt install chromium")
    assert served_page.page_folder().name == "web_dist", "the UI is not built; run: make web"
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield running
        running.close()


@pytest.fixture
def start_server() -> Iterator[Callable[..., Served]]:
    """Starts servers by an answer or a logits function, engine settings, and fields of Config."""
    with fake_servers() as start:
        yield start


@pytest.fixture
def open_chat(browser: Browser) -> Iterator[Callable[..., ChatPage]]:
    """Opens the UI of a server in a browser that knows nothing yet; afterwards checks what every page must keep to:
    nothing is asked of other hosts, and the browser had nothing to complain about (unless `expects_problems`)."""
    contexts: list[BrowserContext] = []
    checks: list[Callable[[], None]] = []

    def open_page(
        served: Served, *, width: int = 1280, height: int = 800, expects_problems: bool = False, **options: Any
    ) -> ChatPage:
        base = f"http://{served.host}:{served.port}"
        context = browser.new_context(
            base_url=base, viewport={"width": width, "height": height}, reduced_motion="reduce", **options
        )
        context.set_default_timeout(10_000)
        contexts.append(context)
        chat = ChatPage(context.new_page())

        def check() -> None:
            outside = [url for url in chat.requests if not url.startswith((f"{base}/", "data:", "blob:"))]
            assert outside == [], "the page asked other hosts"
            assert expects_problems or chat.problems == []

        checks.append(check)
        chat.open()
        return chat

    yield open_page
    for context in contexts:
        context.close()
    for check in checks:
        check()


@pytest.fixture
def gate() -> Iterator[Callable[[Served], Gate]]:
    """Holds the model of a server; all may go on when the test ends. To be named behind `start_server`."""
    gates: list[Gate] = []

    def hold(served: Served) -> Gate:
        gates.append(Gate(served))
        return gates[-1]

    yield hold
    for each in gates:
        each.open()
