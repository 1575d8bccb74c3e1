"""The UI without a mouse, on a phone, in the dark, through an input method, and to a screen reader."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from chatserve.testing import VOCAB_SIZE, RandomLogits, Restricted
from tests.browser.axe import serious_issues
from tests.browser.chat_page import ChatPage
from tests.browser.gate import Gate
from tests.server.harness import Served, eventually

Start = Callable[..., Served]
Open = Callable[..., ChatPage]
Hold = Callable[[Served], Gate]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_axe_finds_nothing_serious(start_server: Start, open_chat: Open, scheme: str, width: int) -> None:
    letters = Restricted(RandomLogits(VOCAB_SIZE, 1, scale=10.0), lambda context: [*b"abcdefgh  "])
    chat = open_chat(start_server(letters), width=width, color_scheme=scheme)
    issues = {"empty": serious_issues(chat)}
    chat.by("toggle-settings").click()
    chat.pick("preset", "Beam search")
    chat.fill("sampling-max_tokens", "12")
    issues["settings"] = serious_issues(chat)
    chat.by("close-panel").click()
    chat.ask("Go")
    issues["search"] = serious_issues(chat)
    chat.last.get_by_test_id("mode-tokens").click()
    chat.by("token").nth(2).click()
    expect(chat.by("token-popover")).to_be_visible()
    issues["tokens"] = serious_issues(chat)
    chat.page.keyboard.press("Escape")
    chat.last.get_by_test_id("mode-text").click()
    chat.by("toggle-engine").click()
    expect(chat.by("no-requests")).to_be_visible()
    issues["engine"] = serious_issues(chat)
    chat.by("close-panel").click()
    chat.by("open-help").click()
    issues["help"] = serious_issues(chat)
    assert not any(issues.values()), json.dumps(issues, indent=1)


@pytest.mark.parametrize(("scheme", "width"), [("dark", 1280), ("light", 390)])
def test_axe_finds_nothing_serious_in_candidates_and_problems(
    start_server: Start, open_chat: Open, scheme: str, width: int
) -> None:
    served = start_server("## Heading\n\n1. **one** [link](https://example.org)\n\n```python\nx = 1\n```")
    chat = open_chat(served, width=width, color_scheme=scheme, expects_problems=True)
    chat.settings(lambda: chat.pick("preset", "Three candidates"))
    chat.send("Go")
    chat.wait_until_done()
    issues = {"candidates": serious_issues(chat)}
    chat.by("choose").first.click()
    expect(chat.last.locator("code.hljs, code .hljs-number").first).to_be_visible()
    issues["chosen"] = serious_issues(chat)
    chat.questions.first.hover()
    chat.questions.first.get_by_test_id("edit").click()
    issues["editor"] = serious_issues(chat)
    chat.by("editor-cancel").click()
    chat.page.context.set_offline(True)
    chat.send("Hi")
    expect(chat.by("problem").first).to_be_visible()
    issues["problem"] = serious_issues(chat)
    assert not any(issues.values()), json.dumps(issues, indent=1)


def test_everything_by_keyboard(start_server: Start, open_chat: Open) -> None:
    served = start_server("word " * 100, delay=0.02)
    chat = open_chat(served)
    keyboard = chat.page.keyboard
    expect(chat.composer).to_be_focused()
    chat.composer.blur()
    keyboard.press("/")
    expect(chat.composer).to_be_focused()
    keyboard.type("first line")
    keyboard.press("Shift+Enter")
    keyboard.type("second line")
    expect(chat.composer).to_have_value("first line\nsecond line")
    keyboard.press("Enter")
    chat.wait_for_text()
    keyboard.press("Escape")
    chat.wait_until_done()
    assert eventually(served.is_idle)
    keyboard.press("Alt+r")
    expect(chat.last.get_by_test_id("version")).to_have_text(re.compile(r"2\D+2"))
    keyboard.press("Escape")
    chat.wait_until_done()
    keyboard.press("Alt+,")
    expect(chat.last.get_by_test_id("version")).to_have_text(re.compile(r"1\D+2"))
    keyboard.press("Alt+e")
    expect(chat.by("editor-field")).to_be_focused()
    keyboard.press("Escape")
    expect(chat.composer).to_be_focused()
    keyboard.press("Alt+s")
    expect(chat.by("settings-panel").get_by_role("heading", level=2)).to_be_focused()
    keyboard.press("Tab")
    keyboard.press("Tab")
    expect(chat.by("preset")).to_be_focused()
    keyboard.press("Escape")
    expect(chat.by("settings-panel")).to_have_count(0)
    keyboard.press("Alt+b")
    expect(chat.by("engine-panel")).to_be_visible()
    keyboard.press("Alt+b")
    keyboard.press("Control+k")
    expect(chat.by("search")).to_be_focused()
    keyboard.press("Alt+n")
    expect(chat.by("message-user")).to_have_count(0)
    chat.composer.blur()
    keyboard.press("?")
    expect(chat.by("help-dialog")).to_contain_text("Alt")
    keyboard.press("Escape")
    expect(chat.by("help-dialog")).to_have_count(0)


def test_every_control_can_be_reached_and_shows_its_focus(start_server: Start, open_chat: Open) -> None:
    chat = open_chat(start_server("Hello!"))
    chat.ask("Hi")
    wanted = {"toggle-list", "toggle-settings", "toggle-engine", "open-help", "composer", "edit", "regenerate"}
    reached: set[str] = set()
    for _ in range(60):
        chat.page.keyboard.press("Tab")
        reached.add(chat.page.evaluate("document.activeElement.dataset.testid ?? ''"))
        outline = chat.page.evaluate(
            "(e => [e.matches(':focus-visible'), getComputedStyle(e).outlineStyle, getComputedStyle(e).boxShadow,"
            " getComputedStyle(e.parentElement).outlineStyle, getComputedStyle(e.parentElement).boxShadow,"
            " getComputedStyle(e.parentElement).borderColor])"
            "(document.activeElement)"
        )
        assert outline[0] is False or any(style not in ("none", "") for style in outline[1:]), reached
    assert wanted <= reached


def test_an_input_methods_enter_does_not_send(start_server: Start, open_chat: Open) -> None:
    chat = open_chat(start_server("Hello!"))
    chat.composer.focus()
    client = chat.page.context.new_cdp_session(chat.page)
    client.send("Input.imeSetComposition", {"text": "にほん", "selectionStart": 3, "selectionEnd": 3})
    enter = {"type": "rawKeyDown", "key": "Enter", "code": "Enter"}
    # What browsers send while an input method is open: code 229, and the composing flag.
    client.send("Input.dispatchKeyEvent", {**enter, "windowsVirtualKeyCode": 229})
    expect(chat.questions).to_have_count(0)
    client.send("Input.insertText", {"text": "日本"})
    expect(chat.composer).to_have_value("日本")
    expect(chat.questions).to_have_count(0)
    client.send("Input.dispatchKeyEvent", {**enter, "windowsVirtualKeyCode": 13})
    expect(chat.questions.first.get_by_test_id("content")).to_have_text("日本")
    chat.wait_until_done()


def test_a_phone(start_server: Start, open_chat: Open) -> None:
    wide = "A wide line: " + "x" * 300 + "\n\n```\n" + "y" * 200 + "\n```"
    chat = open_chat(start_server(wide), width=360, height=640)
    expect(chat.by("conversation-list")).to_have_count(0)
    chat.ask("Hi")
    assert chat.page.evaluate("document.documentElement.scrollWidth") <= 360
    for control in (chat.composer, chat.by("send"), chat.by("toggle-list"), chat.by("toggle-settings")):
        box = control.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360
        assert min(box["width"], box["height"]) >= 24, "too small for a finger"
    chat.by("toggle-list").click()
    expect(chat.by("conversation")).to_have_count(1)
    chat.by("new-chat").click()
    expect(chat.by("conversation-list")).to_have_count(0)
    chat.by("toggle-settings").click()
    panel = chat.by("settings-panel").bounding_box()
    assert panel is not None
    assert panel["x"] >= 0
    assert panel["x"] + panel["width"] <= 360
    assert chat.page.evaluate("document.documentElement.scrollWidth") <= 360


def test_colours_follow_the_system(start_server: Start, open_chat: Open) -> None:
    chat = open_chat(start_server("Hello!"), color_scheme="light")

    def background() -> int:
        colour = chat.page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(int(part) for part in re.findall(r"\d+", colour)[:3])

    light = background()
    chat.page.emulate_media(color_scheme="dark")
    assert background() < 200 < 500 < light


def test_a_screen_reader_hears_one_line_and_no_tokens(start_server: Start, open_chat: Open, gate: Hold) -> None:
    served = start_server("one two three four")
    model = gate(served)
    chat = open_chat(served)
    regions = chat.page.locator("[aria-live]:not([aria-live=off]), [role=status], [role=alert], [role=log]")
    chat.page.evaluate(
        """() => {
            window.heard = [];
            const region = document.querySelector('[data-testid=announcer]');
            new MutationObserver(() => window.heard.push(region.textContent)).observe(
                region, {childList: true, characterData: true, subtree: true});
        }"""
    )
    chat.send("Count")
    model.allow(12)
    expect(chat.last.get_by_test_id("content")).to_contain_text("two")
    expect(chat.last).to_have_attribute("aria-busy", "true")
    for region in regions.all():
        assert "two" not in region.inner_text()
    model.open()
    chat.wait_until_done()
    expect(chat.last).to_have_attribute("aria-busy", "false")
    expect(chat.by("announcer")).to_have_text("The answer is finished: 19 tokens.")
    heard = chat.page.evaluate("window.heard")
    assert len(heard) <= 5, json.dumps(heard)
    assert not any("two" in line for line in heard)
