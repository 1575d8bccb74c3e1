"""The command: ``python -m benchmarks.peers [run|install NAME]``."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from benchmarks.peers.comparison import compare
from benchmarks.peers.engines import engines
from benchmarks.peers.first_token import first_token_table, measure_first_tokens
from benchmarks.peers.http_streams import compare_streams, plot_streams, stream_table, stream_workloads
from benchmarks.peers.installation import install, installable
from benchmarks.peers.report import save, table
from benchmarks.peers.servers import server_table, servers
from benchmarks.peers.workload import short_workloads, standard_workloads

_RESULTS = Path(__file__).parents[1] / "results" / "peers"


def main() -> None:
    options = _parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that workers and servers are ended
    if options.command == "install":
        install(options.engine)
        return
    peers = []
    for peer in engines(options.llama_cpp):
        if options.only and peer.name not in options.only:
            continue
        if reason := peer.obstacle():
            _tell(f"skipped {peer.name}: {reason}")
        else:
            peers.append(peer)
    workloads = short_workloads() if options.short else standard_workloads()
    try:
        results = compare(peers, workloads, options.rounds, _tell)
    finally:
        for peer in peers:
            peer.close()
    print(table(results))
    for path in save(results, options.out):
        _tell(f"wrote {path}")
    if not options.no_http:
        _compare_streams(options)


def _compare_streams(options: argparse.Namespace) -> None:
    running = servers(options.llama_cpp, _tell)
    try:
        seen = compare_streams(running, stream_workloads(options.short), options.rounds, _tell)
        first = measure_first_tokens(running, 5 if options.short else 100, _tell)
        taken = server_table(running)
    finally:
        for server in running:
            server.close()
    text = "\n".join([stream_table(seen), first_token_table(first), taken])
    print(text)
    (options.out / "streams.md").write_text(text)
    _tell(f"wrote {plot_streams(seen, options.out)}")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description="Compare engines on this machine.")
    parser.set_defaults(command="run", rounds=5, short=False, only=None, llama_cpp=None, out=_RESULTS, no_http=False)
    commands = parser.add_subparsers()
    run = commands.add_parser("run", help="measure all engines that are there (what is done without a command)")
    run.set_defaults(command="run")
    run.add_argument("--rounds", type=int, default=5, help="turns of every engine on every workload")
    run.add_argument("--short", action="store_true", help="tiny workloads, to see that everything runs")
    run.add_argument("--only", action="append", help="measure only this engine (repeatable)")
    run.add_argument("--llama-cpp", type=Path, help="folder with llama.cpp's binaries, unless installed or on PATH")
    run.add_argument("--no-http", action="store_true", help="leave out the streams over HTTP")
    run.add_argument("--out", type=Path, default=_RESULTS, help="folder for numbers and plots")
    add = commands.add_parser("install", help="make the environment of an engine in the cache folder")
    add.set_defaults(command="install")
    add.add_argument("engine", choices=installable())
    return parser.parse_args()


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
