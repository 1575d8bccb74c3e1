"""The UI over the default model, view by view; `make screenshots` keeps the pictures for the documents."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.gate import Gate
from tests.server.harness import Served, eventually, serve_default_model

pytestmark = pytest.mark.timeout(600)  # a fresh machine compiles the kernels and fetches the model first

Open = Callable[..., ChatPage]
Hold = Callable[[Served], Gate]
Picture = Callable[[ChatPage, str], None]

WIDE = {"width": 1280, "height": 760}


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serve_default_model() as running:
        yield running


@pytest.fixture
def picture(tmp_path: Path) -> Picture:
    """Takes a picture of a page for the documents."""
    folder = Path(os.environ.get("SCREENSHOTS") or tmp_path)

    def take(chat: ChatPage, name: str) -> None:
        chat.page.mouse.move(1, 1)  # off everything that shows more below the mouse
        chat.screenshot(folder / f"{name}.png")
        assert (folder / f"{name}.png").stat().st_size < 200_000

    return take


def choose(chat: ChatPage, preset: str, max_tokens: int, seed: int = 1) -> None:
    def fill() -> None:
        chat.pick("preset", preset)
        chat.fill("sampling-max_tokens", str(max_tokens))
        chat.fill("sampling-seed", str(seed))

    chat.settings(fill)


def test_the_start_and_the_settings(served: Served, open_chat: Open, picture: Picture) -> None:
    chat = open_chat(served, **WIDE)
    expect(chat.by("start")).to_have_count(3)
    picture(chat, "start")
    chat.by("toggle-settings").click()
    chat.pick("preset", "Beam search")
    expect(chat.by("param-width")).to_have_value("4")
    picture(chat, "settings")


def test_a_question_is_answered(served: Served, open_chat: Open, picture: Picture) -> None:
    chat = open_chat(served, **WIDE)
    choose(chat, "Precise", 120)
    assert chat.ask("What is the capital of France?") == "The capital of France is Paris."
    chat.ask("Write a Python function that adds two numbers.")
    expect(chat.last.get_by_test_id("code-block").first).to_be_visible()
    picture(chat, "chat")


def test_candidates(served: Served, open_chat: Open, picture: Picture) -> None:
    chat = open_chat(served, **WIDE)
    choose(chat, "Three candidates", 60)
    chat.send("Suggest a name for a small bakery, and say why.")
    chat.wait_until_done(60)
    expect(chat.by("candidate")).to_have_count(3)
    picture(chat, "candidates")


def test_a_beam_search(served: Served, open_chat: Open, picture: Picture, gate: Hold) -> None:
    model = gate(served)
    chat = open_chat(served, **WIDE)
    choose(chat, "Beam search", 40)
    chat.send("Complete the sentence: The best thing about rain is")
    view = chat.last.get_by_test_id("search-view")
    model.allow(14)
    expect(view).to_have_attribute("data-steps", re.compile(r"^(13|14)$"), timeout=60_000)
    picture(chat, "search")
    model.open()
    chat.wait_until_done(60)
    text = chat.text_of_last()
    whole = served.chat(
        messages=[{"role": "user", "content": "Complete the sentence: The best thing about rain is"}],
        decoder="beam",
        decoder_params={"width": 4},
        max_tokens=40,
    ).json()["choices"][0]["message"]["content"]
    assert text.split() == whole.replace("*", "").split()


def test_tokens(served: Served, open_chat: Open, picture: Picture) -> None:
    chat = open_chat(served, **WIDE)
    choose(chat, "Lively", 60)
    chat.ask("Why is the sky blue?")
    chat.last.get_by_test_id("mode-tokens").click()
    chat.by("token").nth(8).click()
    expect(chat.by("alternative")).to_have_count(5)
    picture(chat, "tokens")
    alternative = chat.by("alternative").nth(1)
    alternative.click()
    chat.wait_until_done(60)
    expect(chat.last.get_by_test_id("version")).to_have_text(re.compile(r"2\D+2"))


def test_the_engine(served: Served, open_chat: Open, picture: Picture, gate: Hold) -> None:
    model = gate(served)
    chat = open_chat(served, **WIDE)
    choose(chat, "Beam search", 400)
    chat.by("toggle-engine").click()
    chat.send("Tell me about the sea.")
    expect(chat.by("requests").locator("tbody tr")).to_have_count(1)
    model.allow(30)
    view = chat.last.get_by_test_id("search-view")
    expect(view).to_have_attribute("data-steps", re.compile(r"^(29|30)$"), timeout=60_000)
    expect(chat.by("blocks-shared")).not_to_contain_text(re.compile(r"shared 0$"))
    picture(chat, "engine")
    chat.by("stop").click()
    model.open()
    expect(chat.by("no-requests")).to_be_visible()
    assert eventually(served.is_idle, 10)


def test_a_phone_in_the_dark(served: Served, open_chat: Open, picture: Picture) -> None:
    chat = open_chat(served, width=390, height=700, color_scheme="dark")
    choose(chat, "Precise", 60)
    chat.ask("Give me three short tips for a good night's sleep.")
    picture(chat, "phone")
