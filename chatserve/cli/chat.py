"""``chatserve chat``: a conversation in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

import click

from chatserve.cli.options import engine_settings, with_config
from chatserve.cli.wishes import Wishes, with_wishes
from chatserve.config import Config
from chatserve.errors import ChatserveError

EXAMPLES = """\b
Examples:
  chatserve chat
  chatserve chat --system "Answer in one sentence." --temperature 0
  chatserve chat --url http://127.0.0.1:8000
  echo "Why is the sky blue?" | chatserve chat

\b
While you chat:
  /reset           forget the conversation
  /decoder NAME    use another decoder from now on
  /help            list these commands
  /exit            leave (so do Ctrl-D, and Ctrl-C at the prompt)
  Ctrl-C           stop the answer, keep what is there
"""
HELP = "commands: /reset, /decoder NAME, /help, /exit; Ctrl-C stops an answer"


class Model(Protocol):
    """Who answers: `LocalModel` or `RemoteModel`."""

    @property
    def name(self) -> str: ...

    def decoder_names(self) -> list[str]: ...

    def answer(self, messages: list[dict[str, str]], wishes: Wishes, show: Callable[[str], None]) -> None: ...

    def close(self) -> None: ...


class Conversation:
    """The messages so far and how answers are made; each line that the user enters goes through `enter`."""

    def __init__(self, model: Model, wishes: Wishes, system: str | None) -> None:
        self._model = model
        self._wishes = wishes
        self._opening = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._opening)

    def enter(self, line: str) -> bool:
        """Obey a command or answer a message; False when the conversation is to end."""
        command, _, argument = line.strip().partition(" ")
        if command == "/exit":
            return False
        if command == "/reset":
            self._messages = list(self._opening)
        elif command == "/decoder":
            self._choose_decoder(argument.strip())
        elif command == "/help":
            click.echo(HELP, err=True)
        elif command.startswith("/"):
            click.echo(f"unknown command {command}; {HELP}", err=True)
        elif command:
            self._answer(line.strip())
        return True

    def _choose_decoder(self, name: str) -> None:
        names = self._model.decoder_names()
        if name not in names:
            click.echo(f"unknown decoder {name!r}; there are: {', '.join(names)}", err=True)
            return
        self._wishes = replace(self._wishes, decoder=name, decoder_params={})

    def _answer(self, question: str) -> None:
        """Print the answer as it comes; a stopped one stays in the conversation as far as it came."""
        asked = [*self._messages, {"role": "user", "content": question}]
        pieces: list[str] = []

        def show(text: str) -> None:
            pieces.append(text)
            click.echo(text, nl=False)

        try:
            self._model.answer(asked, self._wishes, show)
            click.echo()
        except KeyboardInterrupt:
            click.echo()
            click.echo("(stopped)", err=True)
        except ChatserveError as error:
            click.echo(f"Error: {error}", err=True)
            return
        self._messages = [*asked, {"role": "assistant", "content": "".join(pieces)}]


@click.command(epilog=EXAMPLES, short_help="Chat in the terminal.")
@with_wishes
@click.option("--system", metavar="TEXT", help="System prompt.")
@click.option("--url", metavar="URL", help="Talk to a running server instead of loading a model here.")
@with_config(engine_settings(), positional="model")
def chat(config: Config, wishes: Wishes, system: str | None, url: str | None) -> None:
    """Chat in the terminal with MODEL, or with the default model; reads one message a line."""
    if sys.stdin is None:
        raise click.UsageError("standard input is closed: there is nobody to chat with")
    model = _open(config, url)
    try:
        conversation = Conversation(model, wishes, system)
        if _is_interactive():
            click.echo(f"{model.name}; {HELP}", err=True)
        for line in _lines():
            if not conversation.enter(line):
                break
    finally:
        model.close()


def _open(config: Config, url: str | None) -> Model:
    if url is not None:
        from chatserve.cli.remote_model import RemoteModel

        return RemoteModel(url)
    from chatserve.cli.local_model import LocalModel

    return LocalModel(config)


def _is_interactive() -> bool:
    return sys.stdin.isatty()


def _lines() -> Iterator[str]:
    """What the user enters, until the end of input or Ctrl-C at the prompt."""
    if not _is_interactive():
        yield from sys.stdin
        return
    import readline  # noqa: F401  gives `input` line editing and a history

    while True:
        try:
            line = input("> ")
        except (EOFError, KeyboardInterrupt):
            click.echo(err=True)
            return
        yield line
