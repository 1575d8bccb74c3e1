"""The terminal chat, with a model that answers by script, and the command around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from chatserve.cli import chat as chat_module
from chatserve.cli.application import application
from chatserve.cli.chat import Conversation
from chatserve.cli.wishes import Wishes
from chatserve.errors import ContextLengthError

Messages = list[dict[str, str]]


class ScriptedModel:
    """Answers "<number>: <last message>" in two pieces and keeps what it was asked; may be interrupted or refuse."""

    name = "scripted"

    def __init__(self) -> None:
        self.asked: list[tuple[Messages, Wishes]] = []
        self.is_closed = False

    def decoder_names(self) -> list[str]:
        return ["greedy", "sampling"]

    def answer(self, messages: Messages, wishes: Wishes, show: Callable[[str], None]) -> None:
        self.asked.append((messages, wishes))
        question = messages[-1]["content"]
        if question == "too long":
            raise ContextLengthError("the prompt is too long")
        show(f"{len(self.asked)}: ")
        if question == "stop me":
            raise KeyboardInterrupt
        show(question)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> ScriptedModel:
    scripted = ScriptedModel()
    monkeypatch.setattr(chat_module, "_open", lambda config, url: scripted)
    return scripted


def chat(text: str, *arguments: str) -> tuple[str, str]:
    result = CliRunner().invoke(application, ["chat", *arguments], input=text, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout, result.stderr


def test_each_line_of_piped_input_is_answered_in_one_conversation(model: ScriptedModel) -> None:
    assert chat("one\n\ntwo\n") == ("1: one\n2: two\n", "")
    assert model.asked[1][0] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "1: one"},
        {"role": "user", "content": "two"},
    ]
    assert model.is_closed


def test_reset_forgets_all_but_the_system_prompt(model: ScriptedModel) -> None:
    chat("one\n/reset\ntwo\n", "--system", "Be brief.")
    assert model.asked[1][0] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "two"}]


def test_exit_leaves_the_rest_unread(model: ScriptedModel) -> None:
    assert chat("one\n/exit\ntwo\n") == ("1: one\n", "")
    assert model.is_closed


def test_an_interrupted_answer_ends_alone_and_stays_in_the_conversation(model: ScriptedModel) -> None:
    assert chat("stop me\ngo on\n") == ("1: \n2: go on\n", "(stopped)\n")
    assert model.asked[1][0][1] == {"role": "assistant", "content": "1: "}


def test_a_refused_message_is_reported_and_forgotten(model: ScriptedModel) -> None:
    assert chat("too long\nshort\n") == ("2: short\n", "Error: the prompt is too long\n")
    assert model.asked[1][0] == [{"role": "user", "content": "short"}]


def test_the_decoder_can_be_changed_and_must_exist(model: ScriptedModel) -> None:
    out, err = chat("/decoder beem\none\n/decoder greedy\ntwo\n", "--decoder", "sampling", "--param", "width=4")
    assert out == "1: one\n2: two\n"
    assert err == "unknown decoder 'beem'; there are: greedy, sampling\n"
    assert [wishes for _, wishes in model.asked] == [Wishes("sampling", {"width": 4}), Wishes("greedy", {})]


def test_help_lists_the_commands(model: ScriptedModel) -> None:
    assert chat("/help\n") == ("", "commands: /reset, /decoder NAME, /help, /exit; Ctrl-C stops an answer\n")
    assert model.asked == []


def test_an_unknown_command_is_not_sent_to_the_model(model: ScriptedModel) -> None:
    assert chat("/rest\n")[1].startswith("unknown command /rest; commands: /reset")
    assert model.asked == []


def test_options_become_wishes(model: ScriptedModel) -> None:
    options = ["--temperature", "0", "--top-p", "0.5", "--max-tokens", "7", "--seed", "1", "--stop", "a", "--stop", "b"]
    chat("one\n", *options, "--param", "mode=fast", "--param", "ratio=0.5", "--param", "deep=true", "--decoder", "x")
    [(_, wishes)] = model.asked
    assert wishes.sampling == {"temperature": 0.0, "top_p": 0.5, "max_tokens": 7, "seed": 1, "stop": ("a", "b")}
    assert wishes.decoder_params == {"mode": "fast", "ratio": 0.5, "deep": True}


@pytest.mark.parametrize(
    "options", [["--param", "width"], ["--temperature", "-1"], ["--top-p", "0"], ["--max-tokens", "0"]]
)
def test_an_impossible_option_is_refused(model: ScriptedModel, options: list[str]) -> None:
    result = CliRunner().invoke(application, ["chat", *options], input="one\n")
    assert result.exit_code == 2
    assert options[0] in result.stderr
    assert model.asked == []


def test_ctrl_c_at_the_prompt_leaves(model: ScriptedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[Any] = ["one", KeyboardInterrupt()]

    def enter(prompt: str) -> str:
        line = lines.pop(0)
        if isinstance(line, KeyboardInterrupt):
            raise line
        assert isinstance(line, str)
        return line

    monkeypatch.setattr(chat_module, "_is_interactive", lambda: True)
    monkeypatch.setattr("builtins.input", enter)
    out, err = chat("")
    assert out == "1: one\n"
    assert err.startswith("scripted; commands: ")
    assert model.is_closed


def test_the_conversation_ends_only_with_exit(model: ScriptedModel) -> None:
    conversation = Conversation(model, Wishes(), system=None)
    assert [conversation.enter(line) for line in ("hello", "", "/reset", "/nonsense", "/exit")] == [True] * 4 + [False]
