"""The whole engine on `CudaPages`, whose kernels run in the interpreter: the same tokens as on the CPU's attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.llama import LlamaConfig

from chatserve.decoding import Registry, Sampling
from chatserve.engine import Engine, EngineLimits, GenerationRequest
from chatserve.engine.llm import run_all
from chatserve.models.attention_shape import AttentionShape
from chatserve.models.cuda_pages import CudaPages
from chatserve.models.transformers_runner import TransformersRunner
from chatserve.testing import END_TOKEN_ID, VOCAB_SIZE, byte_vocabulary
from tests.ptx.launcher import PtxLauncher

CONFIG = LlamaConfig(
    vocab_size=VOCAB_SIZE, hidden_size=96, intermediate_size=64, num_hidden_layers=2, num_attention_heads=3,
    num_key_value_heads=1, head_dim=64, max_position_embeddings=128, initializer_range=0.3, bos_token_id=1,
    eos_token_id=END_TOKEN_ID,
)  # fmt: skip
PROMPT = list(b"The quick brown fox jumps over the lazy dog")


def use_cuda_pages(monkeypatch: pytest.MonkeyPatch) -> PtxLauncher:
    """Runners made from now on use `CudaPages` in the interpreter, and graphs for up to two sequences."""
    made = PtxLauncher()

    def in_the_interpreter(shape: AttentionShape, model: Any) -> CudaPages:
        return CudaPages(shape, model.device, model.dtype, made, num_processors=2)

    monkeypatch.setattr("chatserve.models.cuda_pages.GRAPH_SIZES", (1, 2))
    monkeypatch.setattr("chatserve.models.cuda_step.MIN_SPLIT_TOKENS", 16)
    monkeypatch.setattr("chatserve.models.transformers_runner._choose_backend", in_the_interpreter)
    return made


def tiny_llama(dtype: torch.dtype) -> PreTrainedModel:
    torch.manual_seed(5)
    from_config: Any = AutoModelForCausalLM.from_config
    model: PreTrainedModel = from_config(CONFIG).eval().requires_grad_(False).to(dtype)
    return model


def answers(dtype: torch.dtype, requests: list[GenerationRequest], **limits: Any) -> list[list[list[int]]]:
    """The tokens of each choice of each request, run together with chunked prefill."""
    runner = TransformersRunner(tiny_llama(dtype), "tiny")
    given = {"num_blocks": 40, "block_size": 8, "max_batch_tokens": 24, **limits}
    engine = Engine(runner, byte_vocabulary(), Registry.load(), EngineLimits(**given))
    return [[output.token_ids for output in completion.outputs] for completion in run_all(engine, requests)]


def request(
    prompt: list[int], decoder: str, max_tokens: int = 4, num_choices: int = 1, **params: Any
) -> GenerationRequest:
    sampling = Sampling(n=num_choices, max_tokens=max_tokens, seed=3)
    return GenerationRequest(prompt_token_ids=tuple(prompt), sampling=sampling, decoder=decoder, decoder_params=params)


def test_searches_and_samples_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunked prefill, forks with copied blocks, a shared prefix, steps of few and of many sequences."""
    requests = [
        request(PROMPT, "greedy"),
        request(PROMPT[:11], "parallel", num_choices=3),
        request([*PROMPT[:20], 65], "beam", width=2),
    ]
    expected = answers(torch.float32, requests)
    launcher = use_cuda_pages(monkeypatch)
    assert answers(torch.float32, requests) == expected
    assert {name.split()[0] for name in launcher.launched} == {"write", "decode", "combine", "copy"}


def test_chunks_on_tensor_cores_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [request(PROMPT, "greedy"), request(PROMPT[5:30], "greedy")]
    expected = answers(torch.bfloat16, requests)
    launcher = use_cuda_pages(monkeypatch)
    assert answers(torch.bfloat16, requests) == expected
    assert {"write bfloat16 to bfloat16 64", "extend bfloat16 64"} <= set(launcher.launched)


def test_swapped_sequences_return(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool too small for all: somebody is swapped to the host and back."""
    requests = [request(PROMPT[i : i + 16], "greedy", max_tokens=14) for i in range(3)]
    limits = {"num_blocks": 8, "num_host_blocks": 10, "preemption": "swap", "prefix_caching": False}
    expected = answers(torch.float32, requests, **limits)
    launcher = use_cuda_pages(monkeypatch)
    assert answers(torch.float32, requests, **limits) == expected
    assert {"gather blocks", "scatter blocks"} <= set(launcher.launched)
