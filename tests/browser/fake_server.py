"""A server over a scripted model as a process that a test can kill: fake_server.py PORT DELAY ANSWER."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from chatserve.config import Config
from chatserve.server import serve
from tests.server.harness import make_engine, script


def main() -> None:
    port, delay, answer = sys.argv[1:]
    engine, _ = make_engine(script(answer), delay=float(delay))
    serve(lambda: engine, Config(port=int(port)), on_ready=lambda url: print(url, flush=True))


if __name__ == "__main__":
    main()
