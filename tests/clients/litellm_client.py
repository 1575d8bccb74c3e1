"""What litellm reads from a server; run with an interpreter that has it."""

from __future__ import annotations

import json
import sys
from typing import Any

import litellm

TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]


def options(url: str) -> dict[str, Any]:
    return {"model": "openai/fake", "api_base": f"{url}/v1", "api_key": "none"}


def main(text_url: str, call_url: str) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    chunks = litellm.completion(**options(text_url), messages=messages, stream=True)
    calls = litellm.stream_chunk_builder(
        list(litellm.completion(**options(call_url), messages=messages, tools=TOOLS, stream=True))
    )
    found = {
        "text": litellm.completion(**options(text_url), messages=messages).choices[0].message.content,
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
        "calls": [
            [call.function.name, json.loads(call.function.arguments)] for call in calls.choices[0].message.tool_calls
        ],
        "responded": litellm.responses(**options(text_url), input="Hi").output[0].content[0].text,
    }
    print(json.dumps(found))


main(*sys.argv[1:])
