"""What an openai package, an older one for example, reads from a server; run with its own interpreter."""

from __future__ import annotations

import json
import sys
from typing import Any, Literal

import openai
from pydantic import BaseModel

TOOLS: Any = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]
HI: Any = [{"role": "user", "content": "Hi"}]


class Weather(BaseModel):
    city: Literal["Paris"]
    days: Literal[2]


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def parsed(text_url: str, call_url: str) -> dict[str, Any]:
    """Structured output and calls as objects of a class."""
    chat = client(text_url).chat.completions
    whole = chat.parse(model="fake", messages=HI, response_format=Weather).choices[0].message.parsed
    with chat.stream(model="fake", messages=HI, response_format=Weather) as stream:
        streamed = stream.get_final_completion().choices[0].message.parsed
    tools: Any = [openai.pydantic_function_tool(Weather, name="weather")]
    answer = client(call_url).chat.completions.parse(model="fake", messages=HI, tools=tools)
    calls: Any = answer.choices[0].message.tool_calls or []
    return {
        "parsed": whole and whole.model_dump(),
        "parsed_stream": streamed and streamed.model_dump(),
        "parsed_calls": [[call.function.name, call.function.parsed_arguments.model_dump()] for call in calls],
    }


def status_after_retries(url: str) -> int:
    """What a client that tries up to three times is answered at last."""
    persistent = client(url).with_options(max_retries=2)
    try:
        persistent.chat.completions.create(model="fake", messages=HI)
    except openai.APIStatusError as error:
        return error.status_code
    return 200


def text_of_logprobs(url: str) -> str:
    answer: Any = client(url).chat.completions.create(model="fake", messages=HI, logprobs=True, top_logprobs=2)
    items = answer.choices[0].logprobs.content
    assert all(len(item.top_logprobs) == 2 for item in items)
    return bytes(byte for item in items for byte in item.bytes).decode()


def main(text_url: str, call_url: str, busy_url: str, dead_url: str) -> None:
    chat = client(text_url).chat.completions
    chunks = chat.create(model="fake", messages=HI, stream=True)
    with client(call_url).chat.completions.stream(model="fake", messages=HI, tools=TOOLS) as stream:
        calls = stream.get_final_completion().choices[0].message.tool_calls or []
    with client(text_url).responses.stream(model="fake", input="Hi") as response:
        responded = response.get_final_response().output_text
    found: dict[str, Any] = {
        "text": chat.create(model="fake", messages=HI).choices[0].message.content,
        "streamed": "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
        "logprobs": text_of_logprobs(text_url),
        "busy": status_after_retries(busy_url),
        "dead": status_after_retries(dead_url),
        "choices": len(chat.create(model="fake", messages=HI, n=3).choices),
        "calls": [[call.function.name, json.loads(call.function.arguments)] for call in calls],
        "responded": responded,
        **parsed(text_url, call_url),
    }
    try:
        chat.create(model="fake", messages=HI, temperature=-1)
    except openai.BadRequestError as error:
        found["refused"] = error.param
    print(json.dumps(found))


main(*sys.argv[1:])
