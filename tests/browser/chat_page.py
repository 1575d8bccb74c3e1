"""`ChatPage`: the browser UI as a person uses it, found by roles and test ids."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Locator, Page, expect


class ChatPage:
    """One tab with the UI open.

    Attributes:
        page: Playwright's page, for what is not here.
        requests: addresses of everything that the page asked for.
        problems: errors that the browser reported: exceptions, console errors, violations of the policy.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.requests: list[str] = []
        self.problems: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", self._hear)

    def _hear(self, message: object) -> None:
        if getattr(message, "type", "") == "error":
            self.problems.append(str(getattr(message, "text", "")))

    def open(self, path: str = "/") -> None:
        """Load the page, and wait until it is usable and knows its server."""
        self.page.goto(path)
        expect(self.composer).to_be_visible()
        expect(self.by("model")).not_to_have_text("connecting…")

    def by(self, test_id: str) -> Locator:
        return self.page.get_by_test_id(test_id)

    @property
    def composer(self) -> Locator:
        return self.by("composer")

    @property
    def answers(self) -> Locator:
        return self.by("message-assistant")

    @property
    def questions(self) -> Locator:
        return self.by("message-user")

    @property
    def last(self) -> Locator:
        """The last answer."""
        return self.answers.last

    def send(self, text: str) -> None:
        self.composer.fill(text)
        self.composer.press("Enter")
        expect(self.composer).to_have_value("")

    def ask(self, text: str) -> str:
        """Send and wait for the whole answer."""
        self.send(text)
        self.wait_until_done()
        return self.text_of_last()

    def text_of_last(self) -> str:
        return self.last.get_by_test_id("content").inner_text()

    def wait_until_done(self, seconds: float = 30) -> None:
        expect(self.by("send")).to_be_visible(timeout=seconds * 1000)

    def wait_for_text(self, seconds: float = 10) -> None:
        """Wait until something of the last answer is there."""
        content = self.last.locator("[data-testid=content]:not(.waiting)")
        expect(content).to_have_text(re.compile(r"\S"), timeout=seconds * 1000)

    def settings(self, choose: Callable[[], None]) -> None:
        """Open the settings, let `choose` change them, close them."""
        self.by("toggle-settings").click()
        expect(self.by("settings-panel")).to_be_visible()
        choose()
        self.by("close-panel").click()
        expect(self.by("settings-panel")).to_have_count(0)

    def fill(self, test_id: str, text: str) -> None:
        """Fill a field of the settings, and let the form take it in before anything else is changed."""
        self.by(test_id).fill(text)
        self._let_it_draw()

    def pick(self, test_id: str, label: str) -> None:
        """Choose from a list of the settings, likewise."""
        self.by(test_id).select_option(label=label)
        self._let_it_draw()

    def _let_it_draw(self) -> None:
        self.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def screenshot(self, path: Path) -> None:
        self.page.screenshot(path=path, animations="disabled", caret="hide")
