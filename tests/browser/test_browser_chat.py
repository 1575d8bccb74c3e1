"""Chatting in a real browser: streaming, stopping, regenerating, editing, branching, markdown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import expect

from tests.browser.chat_page import ChatPage
from tests.browser.gate import Gate
from tests.server.harness import Served, eventually

Start = Callable[..., Served]
Open = Callable[..., ChatPage]
Hold = Callable[[Served], Gate]

LONG = "word " * 400
COMES_TO_REST = "s => s.dataset.was === String(s.scrollTop) || void (s.dataset.was = s.scrollTop)"


def test_an_answer_streams_in(start_server: Start, open_chat: Open, gate: Hold) -> None:
    served = start_server("Hello **there**, friend.")
    model = gate(served)
    chat = open_chat(served)
    chat.send("Hi")
    content = chat.last.get_by_test_id("content")
    model.allow(6)
    expect(chat.questions.last.get_by_test_id("content")).to_have_text("Hi")
    expect(chat.by("status-row")).to_have_attribute("data-phase", "decode")
    expect(content).to_have_text(re.compile(r"^Hello?\s*$"))
    model.allow(7)
    expect(content).to_have_text(re.compile(r"^Hello there?$"))
    model.open()
    chat.wait_until_done()
    assert chat.text_of_last() == "Hello there, friend."
    expect(chat.last.locator("strong")).to_have_text("there")
    expect(chat.last.get_by_test_id("figures")).to_contain_text("25 tokens")
    expect(chat.by("ttft")).to_be_visible()
    expect(chat.by("tok-s")).to_be_visible()
    expect(chat.by("context")).to_contain_text("/ 4,096")


def test_the_first_load_is_small(start_server: Start, open_chat: Open) -> None:
    chat = open_chat(start_server("Hello!"))
    sizes = chat.page.evaluate(
        """() => Object.fromEntries(performance.getEntriesByType('resource').filter(entry => entry.name.endsWith('.js'))
            .map(entry => [entry.name.split('/').at(-1), entry.encodedBodySize]))"""
    )
    print(sizes)
    assert 10_000 < sum(sizes.values()) < 80_000


def test_stop_gives_the_blocks_back_and_keeps_the_text(start_server: Start, open_chat: Open) -> None:  # case h5
    served = start_server(LONG, delay=0.02)
    chat = open_chat(served)
    chat.send("Tell me a long story")
    chat.wait_for_text()
    assert served.stat("blocks_used") > 0
    chat.by("stop").dblclick()
    assert eventually(served.is_idle, 10)
    chat.wait_until_done()
    kept = chat.text_of_last()
    expect(chat.last.get_by_test_id("end-note")).to_have_text("You stopped this answer.")
    chat.send("And now?")  # at once: the composer is usable
    chat.wait_for_text()
    chat.by("stop").click()
    assert eventually(served.is_idle, 10)
    assert chat.answers.first.get_by_test_id("content").inner_text() == kept, "late text arrived"
    assert len(LONG) > len(kept) > 0


def test_stop_before_the_first_token(start_server: Start, open_chat: Open, gate: Hold) -> None:  # case h5
    served = start_server(LONG)
    model = gate(served)
    chat = open_chat(served)
    chat.send("Hi")
    with chat.page.expect_response(lambda response: response.request.method == "DELETE"):
        chat.by("stop").click()
    chat.wait_until_done()
    model.open()
    assert eventually(served.is_idle, 10)
    assert model.num_steps <= 2, "the engine went on"
    assert "word" not in chat.text_of_last()


def test_what_was_stopped_is_part_of_the_next_request(start_server: Start, open_chat: Open) -> None:  # case h5
    chat = open_chat(start_server(LONG, delay=0.02))
    chat.send("Hi")
    chat.wait_for_text()
    chat.by("stop").click()
    chat.wait_until_done()
    with chat.page.expect_request("**/ui/stream/*") as sent:
        chat.send("Go on")
    messages = json.loads(sent.value.post_data or "")["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert LONG.startswith(messages[1]["content"])
    assert messages[1]["content"] != ""
    chat.by("stop").click()


def test_regenerate_edit_branch_and_switch(start_server: Start, open_chat: Open) -> None:
    chat = open_chat(start_server("An answer."))
    assert chat.ask("First question") == "An answer."
    chat.last.get_by_test_id("regenerate").click()
    chat.wait_until_done()
    expect(chat.last.get_by_test_id("version")).to_have_text(re.compile(r"2\D+2"))
    chat.questions.first.get_by_test_id("edit").click()
    chat.by("editor-field").fill("Second question")
    chat.by("editor-save").click()
    chat.wait_until_done()
    expect(chat.questions).to_have_count(1)
    expect(chat.questions.first.get_by_test_id("content")).to_have_text("Second question")
    expect(chat.questions.first.get_by_test_id("version")).to_have_text(re.compile(r"2\D+2"))
    chat.questions.first.get_by_test_id("previous").click()
    expect(chat.questions.first.get_by_test_id("content")).to_have_text("First question")
    expect(chat.last.get_by_test_id("version")).to_have_text(re.compile(r"2\D+2"))
    chat.last.get_by_test_id("previous").click()
    expect(chat.last.get_by_test_id("version")).to_have_text(re.compile(r"1\D+2"))
    chat.ask("Deeper")
    expect(chat.questions).to_have_count(2)


def test_an_answer_that_was_cut_can_be_continued(start_server: Start, open_chat: Open) -> None:
    chat = open_chat(start_server("One two three four five."))

    def at_most_eight_tokens() -> None:
        chat.fill("sampling-max_tokens", "8")

    chat.settings(at_most_eight_tokens)
    assert chat.ask("Count") == "One two"
    expect(chat.last.get_by_test_id("end-note")).to_have_text("The length limit was reached.")
    with chat.page.expect_request("**/ui/stream/*") as sent:
        chat.last.get_by_test_id("continue").click()
    body = json.loads(sent.value.post_data or "")
    assert body["continue_final_message"] is True
    assert body["messages"][-1] == {"role": "assistant", "content": "One two "}
    chat.wait_until_done()
    expect(chat.answers).to_have_count(1)
    assert chat.text_of_last().startswith("One two ")
    assert len(chat.text_of_last()) > len("One two ")


HOSTILE = """Look: <img src=x onerror="window.P=1"> <script>window.P=1</script> <svg onload=window.P=1>
<iframe srcdoc="<script>parent.P=1</script>"></iframe> [a](javascript:window.P=1) [b](data:text/html,x)

```c
#include <stdio.h>
List<int> x;
```

and `a <b> c` end"""


def test_markup_in_an_answer_never_runs(start_server: Start, open_chat: Open) -> None:  # case h1
    chat = open_chat(start_server(HOSTILE))
    chat.ask("<img src=x onerror='window.P=1'>")
    content = chat.last.get_by_test_id("content")
    for moment in ("live", "from history"):
        assert chat.page.evaluate("window.P") is None, moment
        expect(content.locator("script, iframe, svg:not(.icon), [onerror], [onload]")).to_have_count(0)
        assert [link.get_attribute("href") for link in content.locator("a").all()] in ([], [None, None]), moment
        expect(chat.questions.first.get_by_test_id("content")).to_have_text("<img src=x onerror='window.P=1'>")
        chat.page.reload()
        expect(chat.composer).to_be_visible()


def test_code_keeps_every_character_and_can_be_copied(start_server: Start, open_chat: Open) -> None:  # case h3
    chat = open_chat(start_server(HOSTILE), permissions=["clipboard-read", "clipboard-write"])
    chat.ask("Code, please")
    code = chat.last.get_by_test_id("code-block")
    source = "#include <stdio.h>\nList<int> x;"
    assert code.locator("code").inner_text().rstrip("\n") == source
    expect(chat.last.locator("code", has_text="a <b> c")).to_have_count(1)
    code.get_by_test_id("copy").click()
    assert chat.page.evaluate("navigator.clipboard.readText()").rstrip("\n") == source


def scroll_up_and_stay(chat: ChatPage, go_on: Callable[[], None]) -> float:
    """Scrolls up, lets the answer grow, and answers the place, which must stay."""
    scroller = chat.by("scroller")
    scroller.hover()
    chat.page.mouse.wheel(0, -400)
    expect(chat.by("jump-to-latest")).to_be_visible()
    chat.page.wait_for_function(COMES_TO_REST, arg=scroller.element_handle(), polling=100)
    place, height = scroller.evaluate("s => [s.scrollTop, s.scrollHeight]")
    go_on()
    chat.page.wait_for_function("([s, h]) => s.scrollHeight > h + 300", arg=[scroller.element_handle(), height])
    assert scroller.evaluate("s => s.scrollTop") == place
    return float(place)


def test_the_page_stays_where_one_reads(start_server: Start, open_chat: Open, gate: Hold) -> None:  # case h7
    served = start_server("line\n\n" * 250)
    model = gate(served)
    chat = open_chat(served, height=500)
    chat.send("Count")
    model.allow(500)
    scroller = chat.by("scroller")
    chat.page.wait_for_function("s => s.scrollTop > 600", arg=scroller.element_handle())
    expect(chat.by("jump-to-latest")).to_have_count(0)
    place = scroll_up_and_stay(chat, lambda: model.allow(300))
    chat.by("jump-to-latest").click()
    model.allow(300)
    chat.page.wait_for_function(
        "([s, t]) => s.scrollTop > t + 600 && s.scrollHeight - s.scrollTop - s.clientHeight < 100",
        arg=[scroller.element_handle(), place],
    )
    chat.by("stop").click()


def test_the_page_follows_and_stays_in_a_long_code_block(
    start_server: Start, open_chat: Open, gate: Hold
) -> None:  # case h7
    served = start_server("```python\n" + "x = 1\n" * 250)
    model = gate(served)
    chat = open_chat(served, height=500)
    chat.send("Code, please")
    model.allow(500)
    scroller = chat.by("scroller")
    chat.page.wait_for_function("s => s.scrollTop > 600", arg=scroller.element_handle())
    scroll_up_and_stay(chat, lambda: model.allow(200))


def test_settings_are_sent_and_kept_as_a_preset(start_server: Start, open_chat: Open) -> None:
    chat = open_chat(start_server("Fine."))

    def choose() -> None:
        chat.fill("system-prompt", "Be brief.")
        chat.fill("sampling-temperature", "0.3")
        chat.fill("sampling-seed", "7")
        chat.by("save-preset").click()
        chat.by("preset-name").fill("Mine")
        chat.by("preset-save").click()

    chat.settings(choose)
    chat.page.reload()

    def forget() -> None:
        chat.pick("preset", "Server defaults")
        chat.fill("system-prompt", "")  # it is no matter of presets without one

    chat.settings(forget)
    with chat.page.expect_request("**/ui/stream/*") as sent:
        chat.send("One")
    body = json.loads(sent.value.post_data or "")
    assert body["messages"] == [{"role": "user", "content": "One"}]
    assert "temperature" not in body
    chat.wait_until_done()
    chat.settings(lambda: chat.pick("preset", "Mine"))
    with chat.page.expect_request("**/ui/stream/*") as sent:
        chat.send("Two")
    body = json.loads(sent.value.post_data or "")
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["temperature"], body["seed"]) == (0.3, 7)
    chat.wait_until_done()


def test_conversations_are_kept_found_renamed_and_deleted(start_server: Start, open_chat: Open) -> None:
    chat = open_chat(start_server("Fine."))
    chat.ask("About apples")
    chat.by("new-chat").click()
    chat.ask("About pears")
    expect(chat.by("conversation")).to_have_count(2)
    chat.by("search").fill("apples")
    expect(chat.by("conversation")).to_have_count(1)
    chat.by("conversation").hover()
    chat.by("conversation").get_by_test_id("rename").click()
    chat.by("rename-field").fill("Fruit <b>one</b>")
    chat.by("rename-field").press("Enter")
    chat.by("search").fill("")
    expect(chat.by("conversation")).to_have_count(2)
    chat.page.get_by_text("Fruit <b>one</b>").click()
    expect(chat.by("title")).to_have_text("Fruit <b>one</b>")
    chat.page.reload()
    expect(chat.questions.first.get_by_test_id("content")).to_have_text("About apples")
    chat.by("conversation").first.hover()
    chat.by("conversation").first.get_by_test_id("delete").click()
    chat.by("confirm-delete").click()
    expect(chat.by("conversation")).to_have_count(1)


def test_an_export_restores_the_whole_tree_elsewhere(start_server: Start, open_chat: Open, tmp_path: Path) -> None:
    served = start_server("Fine.")
    chat = open_chat(served)
    chat.ask("A question")
    chat.last.get_by_test_id("regenerate").click()
    chat.wait_until_done()
    with chat.page.expect_download() as download:
        chat.by("export").click()
    file = tmp_path / "export.json"
    download.value.save_as(file)
    assert json.loads(file.read_text())["format"] == "chatserve-conversations"
    other = open_chat(served)
    expect(other.by("conversation")).to_have_count(0)
    other.by("import-file").set_input_files(file)
    expect(other.by("transfer-line")).to_have_text("1 conversation imported.")
    expect(other.questions.first.get_by_test_id("content")).to_have_text("A question")
    expect(other.last.get_by_test_id("version")).to_have_text(re.compile(r"2\D+2"))
    other.last.get_by_test_id("mode-tokens").click()
    expect(other.by("token").first).to_be_visible()
    (tmp_path / "bad.json").write_text("{")
    other.by("import-file").set_input_files(tmp_path / "bad.json")
    expect(other.by("transfer-line")).to_have_text("The file is not JSON.")
