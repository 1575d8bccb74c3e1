"""What an openai package, an older one for example, reads from a server; run with its own interpreter."""

from __future__ import annotations

import json
import sys
from typing import Any

import openai

TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
HI: Any = [{"role": "user", "content": "Hi"}]


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def main(text_url: str, call_url: str) -> None:
    chat = client(text_url).chat.completions
    chunks = chat.create(model="fake", messages=HI, stream=True)
    with client(call_url).chat.completions.stream(model="fake", messages=HI, tools=TOOLS) as stream:
        calls = stream.get_final_completion().choices[0].message.tool_calls or []
    with client(text_url).responses.stream(model="fake", input="Hi") as response:
        responded = response.get_final_response().output_text
    found: dict[str, Any] = {
        "text": chat.create(model="fake", messages=HI).choices[0].message.content,
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
        "choices": len(chat.create(model="fake", messages=HI, n=3).choices),
        "calls": [[call.function.name, json.loads(call.function.arguments)] for call in calls],
        "responded": responded,
    }
    try:
        chat.create(model="fake", messages=HI, temperature=-1)
    except openai.BadRequestError as error:
        found["refused"] = error.param
    print(json.dumps(found))


main(*sys.argv[1:])
