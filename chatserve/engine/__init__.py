"""The engine: iteration-level scheduling, batch building, sampling, and the stepping of decoders."""

from chatserve.engine.async_engine import AsyncEngine, Generation
from chatserve.engine.engine import Engine
from chatserve.engine.generation import Delta, GenerationRequest, PublishedToken, TokenLogprob, Usage
from chatserve.engine.llm import LLM, AsyncLLM, Completion, Output
from chatserve.engine.request_factory import EngineLimits

__all__ = [
    "LLM",
    "AsyncEngine",
    "AsyncLLM",
    "Completion",
    "Delta",
    "Engine",
    "EngineLimits",
    "Generation",
    "GenerationRequest",
    "Output",
    "PublishedToken",
    "TokenLogprob",
    "Usage",
]
