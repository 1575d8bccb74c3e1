"""The HTTP interface: an OpenAI-compatible API, decoder routes and the chat page over one engine.

`create_app` gives the Starlette application, `serve` runs it until a signal.
"""

from chatserve.server.app import create_app
from chatserve.server.serving import serve

__all__ = ["create_app", "serve"]
