"""The command with its subcommands, and how errors end it: one line, exit code 2 for configuration, 1 for the rest."""

from __future__ import annotations

import errno
from typing import Any

import click

from chatserve import __version__
from chatserve.cli.chat import chat
from chatserve.cli.decoders import decoders
from chatserve.cli.generate import generate
from chatserve.cli.pull import pull
from chatserve.cli.serve import serve
from chatserve.errors import ChatserveError, ConfigError

EXAMPLES = """\b
Examples:
  chatserve serve                 the default model, on http://127.0.0.1:8000
  chatserve serve model.gguf      another model
  chatserve chat                  talk to the default model here
  chatserve generate "Why is the sky blue?" --decoder greedy
  chatserve decoders list         what can drive the decoding
"""


# What writing to a full or vanished standard output answers; click itself ends quietly on EPIPE.
_OUTPUT_ERRORS = (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT)


class Failure(click.ClickException):
    """An error as click reports it: "Error: " and one line."""

    def __init__(self, error: ChatserveError | str) -> None:
        super().__init__(" ".join(str(error).split()))


class ConfigFailure(Failure):
    """The same for what the user configured."""

    exit_code = 2


class Application(click.Group):
    """A group whose commands may raise `ChatserveError` or fail to write their output; the rest keeps its traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ChatserveError as error:
            raise (ConfigFailure if isinstance(error, ConfigError) else Failure)(error) from error
        except OSError as error:
            if error.errno not in _OUTPUT_ERRORS or error.filename:
                raise
            raise Failure(f"cannot write the output: {error.strerror}") from error


@click.group(cls=Application, epilog=EXAMPLES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="chatserve", message="%(prog)s %(version)s")
def application() -> None:
    """A streaming LLM chat server whose decoding you can program."""


for command in (serve, chat, generate, pull, decoders):
    application.add_command(command)


def main() -> None:
    """Run the command line; exits the process."""
    application(prog_name="chatserve")
