"""What only this UI shows: candidates side by side, the tree of a search, tokens and their alternatives, the engine."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray
from playwright.sync_api import expect

from chatserve.decoding import Context, Params, Sequence, decoder
from chatserve.testing import END_TOKEN_ID, VOCAB_SIZE, LogitsFunction, RandomLogits, Restricted
from tests.browser.chat_page import ChatPage
from tests.browser.gate import Gate
from tests.server.harness import Served, eventually

Start = Callable[..., Served]
Open = Callable[..., ChatPage]
Hold = Callable[[Served], Gate]

LETTERS = [*b"abcdefghijklmnopqrstuvwxyz    "]


def letters(seed: int = 1) -> LogitsFunction:
    """A model that writes lower-case letters and spaces, and never ends."""
    return Restricted(RandomLogits(VOCAB_SIZE, seed, scale=10.0), lambda context: LETTERS)


def choose_preset(chat: ChatPage, name: str, max_tokens: int) -> None:
    def choose() -> None:
        chat.pick("preset", name)
        chat.fill("sampling-max_tokens", str(max_tokens))

    chat.settings(choose)


def test_three_candidates_side_by_side_and_one_is_chosen(start_server: Start, open_chat: Open) -> None:
    served = start_server(letters(), delay=0.02)
    chat = open_chat(served)
    choose_preset(chat, "Three candidates", 40)
    chat.send("Suggest a name")
    candidates = chat.by("candidate")
    expect(candidates).to_have_count(3)
    boxes = [candidate.bounding_box() for candidate in candidates.all()]
    assert all(box is not None for box in boxes)
    lefts = [box["x"] for box in boxes if box]
    assert lefts == sorted(set(lefts)), "the candidates do not stand side by side"
    chat.wait_until_done()
    texts = [candidate.get_by_test_id("content").inner_text() for candidate in candidates.all()]
    assert len(set(texts)) == 3
    candidates.nth(1).get_by_test_id("choose").click()
    expect(chat.by("candidates")).to_have_count(0)
    assert chat.text_of_last() == texts[1]
    expect(chat.last.get_by_test_id("version")).to_have_text(re.compile(r"2\D+3"))
    with chat.page.expect_request("**/ui/stream/*") as sent:
        chat.send("Why?")
    assert json.loads(sent.value.post_data or "")["messages"][1]["content"].strip() == texts[1].strip()
    chat.wait_until_done()
    assert eventually(served.is_idle)


def test_candidates_are_tabs_on_a_phone(start_server: Start, open_chat: Open) -> None:
    chat = open_chat(start_server(letters()), width=390, height=760)
    choose_preset(chat, "Three candidates", 30)
    chat.send("Suggest a name")
    chat.wait_until_done()
    tabs, candidates = chat.by("candidate-tab"), chat.by("candidate")
    expect(tabs).to_have_count(3)
    assert [candidate.is_visible() for candidate in candidates.all()] == [True, False, False]
    tabs.first.press("ArrowRight")
    expect(tabs.nth(1)).to_be_focused()
    assert [candidate.is_visible() for candidate in candidates.all()] == [False, True, False]
    overflow = chat.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert overflow <= 0, "the page scrolls sideways"


def test_a_beam_tree_grows_and_settles(start_server: Start, open_chat: Open, gate: Hold) -> None:
    served = start_server(letters())
    model = gate(served)
    chat = open_chat(served)
    choose_preset(chat, "Beam search", 30)
    chat.send("Go")
    view = chat.last.get_by_test_id("search-view")
    for num_steps in (4, 8, 16):
        model.allow(num_steps - model.num_steps)
        expect(view).to_have_attribute("data-steps", re.compile(f"^({num_steps}|{num_steps - 1})$"))
    expect(chat.by("stop")).to_be_visible()
    model.open()
    chat.wait_until_done()
    expect(view).to_have_attribute("data-steps", re.compile("3[01]"))
    assert chat.by("tree-segment").count() > 1
    expect(chat.by("hypotheses").locator("tbody tr")).to_have_count(4)
    scores = [float(cell) for cell in chat.by("hypotheses").locator("tbody td:nth-child(2)").all_inner_texts()]
    assert scores == sorted(scores, reverse=True)
    chosen = chat.by("hypotheses").locator("tbody td:last-child").first.get_attribute("title") or ""
    assert chat.text_of_last() == " ".join(chosen.split()), "the chosen path is not the answer"
    chat.last.get_by_test_id("mode-text").click()
    expect(view).to_have_count(0)
    assert eventually(served.is_idle)


def test_the_tree_of_a_search_with_several_answers(start_server: Start, open_chat: Open, gate: Hold) -> None:
    served = start_server(letters())
    model = gate(served)
    chat = open_chat(served)
    choose_preset(chat, "Beam search", 12)
    chat.settings(lambda: chat.fill("setting-n", "2"))
    chat.send("Go")
    view = chat.by("candidates").get_by_test_id("search-view")
    model.allow(4)
    expect(view).to_have_attribute("data-steps", re.compile("^[34]$"))
    model.open()
    chat.wait_until_done()
    expect(chat.by("candidate")).to_have_count(2)
    assert chat.by("tree-segment").count() > 1
    chat.by("candidates-search").click()
    expect(view).to_have_count(0)
    chat.by("candidates-search").click()
    expect(view).to_have_attribute("data-steps", re.compile("1[123]"))


def test_tokens_with_their_alternatives_and_a_branch_from_one(start_server: Start, open_chat: Open) -> None:
    chat = open_chat(start_server(letters()))
    choose_preset(chat, "Precise", 24)
    answer = chat.ask("Go")
    chat.last.get_by_test_id("mode-tokens").click()
    tokens = chat.by("token")
    expect(tokens).to_have_count(24)
    shades = {token.get_attribute("class") for token in tokens.all()}
    assert len(shades) > 1, "probabilities are not coloured"
    tokens.nth(3).hover()
    expect(chat.by("token-popover")).to_be_visible()
    chat.page.mouse.move(5, 5)
    tokens.nth(3).click()
    expect(chat.by("alternative")).to_have_count(5)
    alternative = chat.by("alternative").nth(1)
    forced = (alternative.locator("code").inner_text()).replace("␣", " ")
    with chat.page.expect_request("**/ui/stream/*") as sent:
        alternative.click()
    body = json.loads(sent.value.post_data or "")
    begun = body["messages"][-1]["content"]
    assert body["continue_final_message"] is True
    assert len(begun) == 4
    assert begun.endswith(forced)
    chat.wait_until_done()
    expect(chat.last.get_by_test_id("version")).to_have_text(re.compile(r"2\D+2"))
    chat.last.get_by_test_id("mode-text").click()
    assert chat.text_of_last() != answer
    assert " ".join(chat.text_of_last().split()).startswith(begun.strip())


def test_alternatives_by_keyboard(start_server: Start, open_chat: Open) -> None:
    chat = open_chat(start_server(letters()))
    choose_preset(chat, "Precise", 12)
    chat.ask("Go")
    chat.last.get_by_test_id("mode-tokens").click()
    chat.by("token").first.focus()
    chat.page.keyboard.press("ArrowRight")
    chat.page.keyboard.press("ArrowRight")
    expect(chat.by("token").nth(2)).to_be_focused()
    chat.page.keyboard.press("Enter")
    expect(chat.by("alternative").first).to_be_focused()
    chat.page.keyboard.press("ArrowDown")
    expect(chat.by("alternative").nth(1)).to_be_focused()
    chat.page.keyboard.press("Escape")
    expect(chat.by("token-popover")).to_have_count(0)
    expect(chat.by("token").nth(2)).to_be_focused()
    chat.page.keyboard.press("Enter")
    chat.page.keyboard.press("ArrowDown")
    chat.page.keyboard.press("Enter")
    chat.wait_until_done()
    expect(chat.last.get_by_test_id("version")).to_have_text(re.compile(r"2\D+2"))


def test_an_end_token_cannot_be_forced(start_server: Start, open_chat: Open) -> None:
    def row(context: NDArray[np.int32]) -> NDArray[np.float32]:
        logits = np.zeros(VOCAB_SIZE, np.float32)
        logits[ord("a")], logits[END_TOKEN_ID] = 5.0, 4.0
        return logits

    class Model:
        vocab_size = VOCAB_SIZE
        __call__ = staticmethod(row)

    chat = open_chat(start_server(Model()))
    choose_preset(chat, "Precise", 5)
    chat.ask("Go")
    chat.last.get_by_test_id("mode-tokens").click()
    chat.by("token").first.click()
    expect(chat.by("alternative").nth(1)).to_contain_text("<|end|>")
    expect(chat.by("alternative").nth(1)).to_have_attribute("aria-disabled", "true")


class ShoutParams(Params, frozen=True):
    """Parameters of every kind that a form has a field for."""

    volume: Annotated[int, Meta(ge=1, le=11, description="How loud.")] = 7
    word: Annotated[str, Meta(description="What to shout.")] = "HEY"
    is_twice: bool = False


@decoder("shout", params=ShoutParams, api=1)
async def shout(ctx: Context, prompt: Sequence, params: ShoutParams) -> None:
    """Shout a word, once for each step of the volume."""
    repeats = params.volume * (2 if params.is_twice else 1)
    prompt.append([*(params.word * repeats).encode(), END_TOKEN_ID])
    ctx.publish(prompt, 0)


def test_a_plugin_shows_up_with_its_form(start_server: Start, open_chat: Open) -> None:
    chat = open_chat(start_server("no", extra_decoders=[shout]))

    def choose() -> None:
        chat.pick("decoder", "shout")
        expect(chat.by("decoder-description")).to_contain_text("Shout a word")
        expect(chat.by("schema-form")).to_contain_text("How loud.")
        expect(chat.by("param-volume")).to_have_attribute("placeholder", "7")
        chat.fill("param-volume", "3")
        chat.by("param-is_twice").check()

    chat.settings(choose)
    with chat.page.expect_request("**/ui/stream/*") as sent:
        chat.send("Now")
    body = json.loads(sent.value.post_data or "")
    assert (body["decoder"], body["decoder_params"]) == ("shout", {"volume": 3, "is_twice": True})
    chat.wait_until_done()
    assert chat.text_of_last() == "HEY" * 6


def test_a_parameter_that_is_refused_is_told(start_server: Start, open_chat: Open) -> None:
    chat = open_chat(start_server("no", extra_decoders=[shout]), expects_problems=True)

    def choose() -> None:
        chat.pick("decoder", "beam")
        chat.fill("setting-n", "9")

    chat.settings(choose)
    chat.send("Now")
    expect(chat.by("problem").first).to_contain_text("width")
    expect(chat.by("retry").first).to_be_visible()


def ask_beside(chat: ChatPage, body: dict[str, Any]) -> str:
    """Have the page ask for something that it does not show; returns where that answer is to be had."""
    path = f"/ui/stream/{secrets.token_hex(16)}"
    script = "([path, body]) => { fetch(path, {method: 'PUT', body: JSON.stringify(body)}); }"
    chat.page.evaluate(script, [path, body])
    return path


def test_the_engine_view_follows_a_request(start_server: Start, open_chat: Open) -> None:
    served = start_server(letters(), delay=0.15, num_blocks=64)
    chat = open_chat(served)
    chat.by("toggle-engine").click()
    expect(chat.by("no-requests")).to_be_visible()
    expect(chat.by("blocks-free")).to_contain_text("64")
    answer = ask_beside(
        chat,
        {
            "messages": [{"role": "user", "content": "x" * 50}],
            "decoder": "beam",
            "decoder_params": {"width": 3},
            "max_tokens": 200,
        },
    )
    row = chat.by("requests").locator("tbody tr")
    expect(row).to_have_attribute("data-state", "running")
    expect(row.locator("td").first).to_have_text("beam")
    expect(chat.by("blocks-shared")).not_to_contain_text(re.compile(r"shared 0$"))
    expect(chat.by("blocks-used")).not_to_contain_text(re.compile(r"used 0$"))
    expect(chat.by("engine-tokens")).not_to_have_text("0.0")
    box = chat.by("block-map").bounding_box()
    assert box is not None
    lines = set()
    for column in range(0, int(box["width"]) - 2, 4):
        chat.page.mouse.move(box["x"] + column + 2, box["y"] + 3)
        lines.add(chat.by("block-line").inner_text())
    assert any("beam (" in line for line in lines), "pointing at a block does not say whose it is"
    chat.page.reload()
    assert not eventually(served.is_idle, 0.5)
    served.http.delete(answer)
    chat.by("toggle-engine").click()
    expect(chat.by("no-requests")).to_be_visible()
    expect(chat.by("blocks-used")).to_contain_text(re.compile(r"used 0$"))


def test_the_prefill_is_seen(start_server: Start, open_chat: Open, gate: Hold) -> None:
    served = start_server("Hello!")
    model = gate(served)
    chat = open_chat(served)
    chat.send("x" * 1400)
    for percent in (0, 36, 72):  # 512 of 1,418 tokens at a time
        expect(chat.by("phase")).to_have_text(f"Prefill {percent} %")
        model.allow(1)
    expect(chat.by("phase")).to_have_text("Decoding")


def test_waiting_in_the_queue_is_seen(start_server: Start, open_chat: Open, gate: Hold) -> None:
    served = start_server("word " * 400, num_blocks=40)
    model = gate(served)
    first = {"messages": [{"role": "user", "content": "y" * 400}], "max_tokens": 100}
    chat = open_chat(served)
    ask_beside(chat, first)
    assert eventually(lambda: served.stat("requests_running") == 1, 10)
    chat.send("x" * 400)
    expect(chat.by("phase")).to_have_text("Queued #1")
    model.allow(150)  # 100 tokens of the first, and some of the second
    expect(chat.by("phase")).to_have_text("Decoding")
