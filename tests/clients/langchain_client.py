"""What LangChain's OpenAI package reads from a server; run with an interpreter that has it."""

from __future__ import annotations

import functools
import json
import operator
import sys
from typing import Any

from langchain_openai import ChatOpenAI


def weather(city: str, days: int) -> str:
    """The weather of a city."""
    return f"{days} days of rain in {city}"


def model(url: str, **options: Any) -> Any:
    return ChatOpenAI(base_url=f"{url}/v1", api_key="none", model="fake", max_retries=0, timeout=60, **options)


def streamed_calls(asked: Any) -> list[list[Any]]:
    whole = functools.reduce(operator.add, asked.bind_tools([weather]).stream("Hi"))
    return [[call["name"], call["args"]] for call in whole.tool_calls]


def main(text_url: str, call_url: str) -> None:
    responses = model(text_url, use_responses_api=True).invoke("Hi")
    found = {
        "text": model(text_url).invoke("Hi").content,
        "streamed": "".join(chunk.content for chunk in model(text_url).stream("Hi")),
        "calls": streamed_calls(model(call_url)),
        "responded": responses.content[0]["text"],
        "responded_calls": streamed_calls(model(call_url, use_responses_api=True)),
    }
    print(json.dumps(found))


main(*sys.argv[1:])
