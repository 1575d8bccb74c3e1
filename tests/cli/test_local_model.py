"""`generate` and the in-process model behind `chat`, over the real engine and a scripted model."""

from __future__ import annotations

import json
import signal

import pytest
from click.testing import CliRunner, Result

from chatserve.cli.application import application
from chatserve.cli.local_model import LocalModel
from chatserve.cli.wishes import Wishes
from chatserve.config import Config
from chatserve.decoding.registry import Registry
from chatserve.engine import AsyncEngine, Engine, EngineLimits
from chatserve.errors import ContextLengthError
from chatserve.testing import END_TOKEN_ID, VOCAB_SIZE, FakeRunner, Script, byte_chat_template, byte_vocabulary

ANSWER = "Grüße aus Wien!"
MESSAGES = [{"role": "user", "content": "Hi"}]
PROMPT = "<|start|>user\nHi<|end|><|start|>assistant\n"
PROMPT_LEN = 3 + len("user\nHiassistant\n")


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> AsyncEngine:
    """The engine that the commands find instead of a loaded model: one token a byte, always the same answer."""
    script = Script(list(ANSWER.encode()), vocab_size=VOCAB_SIZE, end_token_id=END_TOKEN_ID)
    runner = FakeRunner(script, max_model_len=256, delay=0.001)
    engine = Engine(runner, byte_vocabulary(), Registry.load(), EngineLimits(64))
    made = AsyncEngine(engine, byte_chat_template())
    monkeypatch.setattr("chatserve.cli.local_model.load_engine", lambda config: made)
    return made


def generate(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(application, ["generate", *arguments], input=text, catch_exceptions=False)


def test_the_answer_goes_to_standard_output() -> None:
    result = generate("Hi")
    assert (result.exit_code, result.stdout, result.stderr) == (0, ANSWER + "\n", "")


def test_the_prompt_may_come_from_standard_input() -> None:
    assert json.loads(generate("-", "--json", text="Hi").stdout)["usage"]["prompt_tokens"] == PROMPT_LEN


def test_json_tells_texts_reasons_and_counts() -> None:
    assert json.loads(generate("Hi", "--json", "--max-tokens", "3").stdout) == {
        "model": "fake",
        "choices": [{"index": 0, "text": "Gr\ufffd", "finish_reason": "length"}],
        "usage": {"prompt_tokens": PROMPT_LEN, "completion_tokens": 3, "computed_tokens": PROMPT_LEN + 2},
    }


def test_several_choices_are_printed_one_after_the_other() -> None:
    assert generate("Hi", "--choices", "2").stdout == f"[0] {ANSWER}\n[1] {ANSWER}\n"


def test_a_stop_text_ends_the_answer() -> None:
    assert generate("Hi", "--stop", " aus").stdout == "Grüße\n"


def test_raw_takes_the_prompt_as_it_stands() -> None:
    assert json.loads(generate("Hi", "--raw", "--json").stdout)["usage"]["prompt_tokens"] == 2


def test_raw_has_no_place_for_a_system_prompt() -> None:
    result = generate("Hi", "--raw", "--system", "Be brief.")
    assert result.exit_code == 2
    assert "--raw takes no --system" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["Hi", "--decoder", "nope"], "Error: decoder 'nope' is not known; there are: "),
        (
            ["Hi", "--decoder", "greedy", "--param", "width=4"],
            "Error: decoder_params: Object contains unknown field `width`",
        ),
    ],
)
def test_what_the_engine_refuses_is_one_line(arguments: list[str], complaint: str) -> None:
    result = generate(*arguments)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(complaint)
    assert result.stderr.count("\n") == 1


def test_a_model_answers_again_and_again() -> None:
    model = LocalModel(Config())
    pieces: list[str] = []
    for _ in range(3):
        model.answer(MESSAGES, Wishes(), pieces.append)
    model.close()
    assert "".join(pieces) == ANSWER * 3
    assert len(pieces) > 3, "the text comes in pieces"


def test_ctrl_c_stops_the_answer_and_frees_its_blocks(engine: AsyncEngine) -> None:
    model = LocalModel(Config())
    pieces: list[str] = []

    def interrupt_after_three(text: str) -> None:
        pieces.append(text)
        if len(pieces) == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        model.answer(MESSAGES, Wishes(), interrupt_after_three)
    assert "".join(pieces) != ANSWER
    again: list[str] = []
    model.answer(MESSAGES, Wishes(), again.append)
    assert "".join(again) == ANSWER
    assert engine.stats()["blocks_used"] == 0
    model.close()


def test_a_prompt_beyond_the_context_is_refused_and_the_next_is_answered() -> None:
    model = LocalModel(Config())
    pieces: list[str] = []
    with pytest.raises(ContextLengthError):
        model.answer([{"role": "user", "content": "x" * 300}], Wishes(), pieces.append)
    model.answer(MESSAGES, Wishes(), pieces.append)
    model.close()
    assert "".join(pieces) == ANSWER


def test_only_decoders_that_work_are_offered() -> None:
    model = LocalModel(Config())
    assert {"greedy", "parallel", "sampling"} <= set(model.decoder_names())
    model.close()


def test_the_chat_template_makes_the_prompt() -> None:
    model = LocalModel(Config())
    assert model.chat_prompt(MESSAGES) == byte_vocabulary().encode(PROMPT)
    model.close()
