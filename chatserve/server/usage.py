"""Token counts in the shape of the API."""

from __future__ import annotations

from typing import Any

from chatserve.engine.generation import Usage


def usage_body(usage: Usage) -> dict[str, Any]:
    """The ``usage`` object; ``computed_tokens`` is ours: what a search spent, prompt included."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"computed_tokens": usage.computed_tokens},
    }
