"""The ``chatserve`` command. Nothing heavy is imported before a command really needs a model."""

from chatserve.cli.application import main

__all__ = ["main"]
