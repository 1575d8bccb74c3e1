"""``chatserve generate``: one prompt, one answer."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from chatserve.cli.options import engine_settings, with_config
from chatserve.cli.wishes import Wishes, with_wishes
from chatserve.config import Config

if TYPE_CHECKING:
    from chatserve.engine.generation import Delta, Usage

EXAMPLES = """\b
Examples:
  chatserve generate "Why is the sky blue?" --max-tokens 100
  chatserve generate "Name a colour." --choices 4 --decoder parallel
  chatserve generate "The capital of France is" --raw --decoder greedy --max-tokens 5
  chatserve generate - --json < prompt.txt
"""


class Answers:
    """Collects the choices of one request and prints them: one as it comes, several one after the other."""

    def __init__(self, num_choices: int, *, is_silent: bool) -> None:
        self.texts = [""] * num_choices
        self.finish_reasons: list[str | None] = [None] * num_choices
        self._is_streaming = num_choices == 1 and not is_silent

    def take(self, delta: Delta) -> None:
        self.texts[delta.choice] += delta.text
        self.finish_reasons[delta.choice] = delta.finish_reason or self.finish_reasons[delta.choice]
        if self._is_streaming:
            click.echo(delta.text, nl=False)

    def print(self) -> None:
        """Print what was not printed while it came."""
        if self._is_streaming:
            click.echo()
            return
        for index, text in enumerate(self.texts):
            click.echo(f"[{index}] {text}")

    def to_json(self, model: str, usage: Usage) -> str:
        choices = [
            {"index": index, "text": text, "finish_reason": reason}
            for index, (text, reason) in enumerate(zip(self.texts, self.finish_reasons, strict=True))
        ]
        counts = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "computed_tokens": usage.computed_tokens,
        }
        return json.dumps({"model": model, "choices": choices, "usage": counts}, ensure_ascii=False)


@click.command(epilog=EXAMPLES, short_help="Answer one prompt.")
@click.argument("prompt")
@with_wishes
@click.option("--choices", type=click.IntRange(min=1), default=1, help="How many answers.  [default: 1]")
@click.option("--system", metavar="TEXT", help="System prompt.")
@click.option("--raw", is_flag=True, help="Continue PROMPT as it stands, without the chat template.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: choices, finish reasons, token counts.")
@with_config(engine_settings())
def generate(
    config: Config, wishes: Wishes, prompt: str, choices: int, system: str | None, raw: bool, as_json: bool
) -> None:
    """Answer PROMPT once, streaming to standard output; - reads it from standard input."""
    from chatserve.cli.local_model import LocalModel

    if raw and system:
        raise click.UsageError("--raw takes no --system: there is no chat template to put it in")
    if prompt == "-" and sys.stdin is None:
        raise click.UsageError("PROMPT is - but standard input is closed")
    text = sys.stdin.read() if prompt == "-" else prompt
    answers = Answers(choices, is_silent=as_json)
    model = LocalModel(config)
    try:
        opening = [{"role": "system", "content": system}] if system else []
        messages = [*opening, {"role": "user", "content": text}]
        prompt_ids = model.text_prompt(text) if raw else model.chat_prompt(messages)
        usage = model.generate(prompt_ids, wishes.with_choices(choices), answers.take)
    finally:
        model.close()
    if as_json:
        click.echo(answers.to_json(model.name, usage))
    else:
        answers.print()
