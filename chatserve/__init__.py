"""chatserve: a streaming LLM chat server whose decoding you can program."""

__version__ = "0.1.0"
