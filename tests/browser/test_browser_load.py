"""A conversation of 500 messages and an answer of 20,000 tokens, and how long the page is busy at a stretch."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from playwright.sync_api import Browser, expect

from chatserve.config import Config
from chatserve.decoding import Registry
from chatserve.engine import AsyncEngine, Engine, EngineLimits
from chatserve.models.batch import Batch, Float32Array
from chatserve.models.runner import ModelInfo
from chatserve.testing import VOCAB_SIZE, byte_chat_template, byte_vocabulary
from tests.browser.busy_times import busy_times
from tests.browser.chat_page import ChatPage
from tests.browser.gate import Gate
from tests.server.harness import Served, serve_in_thread

Open = Callable[..., ChatPage]
Hold = Callable[[ChatPage, str], AbstractContextManager[None]]

LONGEST_TASK_MS = 100
NUM_TOKENS = 20_000
NUM_AHEAD = 500
UNFINISHED = """() => new Promise(done => {
    indexedDB.open('chatserve').onsuccess = opened => {
        const messages = opened.target.result.transaction('messages').objectStore('messages').getAll();
        messages.onsuccess = () => done(messages.result.find(message => message.stream).stream);
    };
})"""
NUM_SHOWN = "parseInt(document.querySelector('[data-testid=tokens]')?.innerText.replaceAll(',', '') ?? 0)"
STEP_SECONDS = 0.001  # at most some 700 tokens a second: many times what the default model writes
PASSAGE = """### A heading

Some **bold** text, a [link](https://example.org), `inline code`, and a sentence that goes on for a while.

- a list
- of things

```python
def answer(question: str) -> int:
    return 42  # always
```

| a | b |
|---|---|
| 1 | 2 |

"""


@pytest.fixture
def hold(browser: Browser) -> Hold:
    """Holds that no task of the page takes too long, and prints the longest."""

    @contextmanager
    def watch(chat: ChatPage, what: str) -> Iterator[None]:
        with busy_times(browser, chat.page) as busy:
            yield
        numbers = ", ".join(f"{milliseconds:.0f}" for milliseconds in busy.milliseconds[:5])
        print(f"\n{what}: {len(busy.milliseconds)} tasks, the longest took {numbers} ms of CPU time")
        assert busy.longest < LONGEST_TASK_MS

    return watch


class Tape:
    """A runner that writes one text at a steady pace, whatever it is asked: row p is for token p + 1."""

    def __init__(self, text: bytes, max_model_len: int) -> None:
        self.info = ModelInfo(
            name="tape",
            vocab_size=VOCAB_SIZE,
            max_model_len=max_model_len,
            kv_bytes_per_token=1,
            is_batch_invariant=True,
            description="a tape",
        )
        self._text = np.frombuffer(text, np.uint8)

    def allocate(self, num_blocks: int, block_size: int, num_host_blocks: int = 0) -> None:
        """There are no pages."""

    def forward(self, batch: Batch) -> Float32Array:
        time.sleep(STEP_SECONDS)
        rows = np.zeros((len(batch.wanted), VOCAB_SIZE), np.float32)
        places = batch.positions[batch.wanted] % len(self._text)
        rows[np.arange(len(rows)), self._text[places]] = 12.0
        return rows

    def close(self) -> None:
        """There is nothing to release."""


@pytest.fixture
def tape() -> Iterator[Served]:
    """A server that writes the passage over and over."""
    runner = Tape(PASSAGE.encode(), max_model_len=1 << 20)
    limits = EngineLimits(num_blocks=1 << 14, max_batch_tokens=1 << 14)
    engine = Engine(runner, byte_vocabulary(), Registry.load(), limits)
    asynchronous = AsyncEngine(engine, byte_chat_template())
    with serve_in_thread(asynchronous, cast(Any, runner), Config(shutdown_grace=0.2)) as served:
        yield served


def conversation_file(path: Path, num_messages: int) -> Path:
    """An export with one long conversation."""
    messages = {}
    parent = ""
    for index in range(num_messages):
        role = "assistant" if index % 2 else "user"
        content = PASSAGE * 2 if index % 2 else f"Question {index}"
        message = {"id": f"m{index}", "parent": parent, "role": role, "content": content, "created": index}
        messages[f"m{index}"] = message
        parent = f"m{index}"
    conversation = {
        "id": "c",
        "title": "Long",
        "messages": messages,
        "settings": {},
        "selected": {},
    }
    exported = {"format": "chatserve-conversations", "version": 1}
    path.write_text(json.dumps({**exported, "conversations": [{"conversation": conversation, "details": []}]}))
    return path


def test_five_hundred_messages_scroll(tape: Served, open_chat: Open, hold: Hold, tmp_path: Path) -> None:
    chat = open_chat(tape)
    chat.by("import-file").set_input_files(conversation_file(tmp_path / "long.json", 500))
    expect(chat.by("transfer-line")).to_contain_text("1 conversation")
    with hold(chat, "opening 500 messages"):
        chat.page.reload()
        wait_quietly(chat, "document.querySelectorAll('article.message').length === 500")
    scroller = chat.by("scroller")
    scroller.hover()
    with hold(chat, "scrolling 500 messages"):
        for step in (-1, 1, -1):
            for _ in range(20):
                chat.page.mouse.wheel(0, step * 2000)
                chat.page.wait_for_timeout(16)


@pytest.mark.full  # it takes a minute or more
def test_twenty_thousand_tokens_stream(
    tape: Served, open_chat: Open, hold: Hold, gate: Callable[[Served], Gate]
) -> None:
    model = gate(tape)
    chat = open_chat(tape)
    chat.settings(lambda: chat.fill("sampling-max_tokens", str(NUM_TOKENS)))
    with hold(chat, "the first tokens of 20,000"):
        chat.send("Write")
        stream(chat, model, 300)
    # The browser's tools keep every response, and at its end hold up the page in proportion to its length, even a page
    # that only reads it (13 MB: 51 ms). So the answer comes in four responses.
    for part in (1, 2, 3):
        stream(chat, model, part * NUM_TOKENS // 4)
        break_connection(chat, tape)
    with hold(chat, "the last quarter of 20,000 tokens"):
        stream(chat, model, NUM_TOKENS)
        wait_quietly(chat, "document.querySelector('[data-testid=send]')")
    expect(chat.last.get_by_test_id("figures")).to_contain_text("20,000 tokens")
    print(chat.last.get_by_test_id("figures").inner_text())


def break_connection(chat: ChatPage, served: Served) -> None:
    """End the response that the page is reading, by reading in its place; the page comes back by itself."""
    answer = chat.page.evaluate(UNFINISHED)
    with served.http.stream("GET", f"/ui/stream/{answer['id']}", params={"after": answer["lastEventId"]}) as response:
        assert response.status_code == 200
        expect(chat.by("phase")).to_contain_text("reconnecting")


def stream(chat: ChatPage, model: Gate, num_tokens: int) -> None:
    """Let the answer grow to this many tokens, never far ahead of what the page has shown: the machine may be slow."""
    for _ in range(6000):
        shown = chat.page.evaluate(NUM_SHOWN)
        if shown >= num_tokens:
            return
        model.allow_up_to(min(shown + NUM_AHEAD, num_tokens))
        chat.page.wait_for_timeout(100)
    raise AssertionError(f"the page never showed {num_tokens} tokens")


def wait_quietly(chat: ChatPage, condition: str) -> None:
    """Wait in the least disturbing way: Playwright's own assertions look through the whole page again and again."""
    for _ in range(1200):
        if chat.page.evaluate(f"Boolean({condition})"):
            return
        chat.page.wait_for_timeout(100)
    raise AssertionError(f"it never came to {condition}")
