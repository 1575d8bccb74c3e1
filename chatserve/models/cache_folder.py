"""The cache folder: where downloads and converted weights live between starts."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chatserve.errors import ModelLoadError


def cache_folder() -> Path:
    """``$CHATSERVE_CACHE``, else ``$XDG_CACHE_HOME/chatserve``, else ``~/.cache/chatserve``; not created here."""
    if explicit := os.environ.get("CHATSERVE_CACHE"):
        return Path(explicit)
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base) / "chatserve"
    return Path.home() / ".cache" / "chatserve"


@contextmanager
def scratch_folder(cache_dir: Path) -> Iterator[Path]:
    """A private folder inside `cache_dir`, so that its files can be published with `os.replace`; removed at the end.

    Two processes never share one, so they can prepare the same file at once and the last to publish wins.
    Raises ModelLoadError when the cache folder cannot be written.
    """
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=".partial-", dir=cache_dir))
    except OSError as error:
        raise ModelLoadError(f"cannot write the cache folder {cache_dir}: {error} (set CHATSERVE_CACHE)") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
