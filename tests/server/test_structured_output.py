"""Structured output over HTTP: every field that asks for it, on every endpoint, streaming or not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel

from tests.server.harness import HI, Served, events, text_of

SCHEMA = {
    "type": "object",
    "properties": {"size": {"type": "integer", "minimum": 0, "maximum": 9}, "big": {"type": "boolean"}},
    "required": ["size", "big"],
    "additionalProperties": False,
}


def is_sized(text: str) -> bool:
    value = json.loads(text)
    return list(value) == ["size", "big"] and 0 <= value["size"] <= 9 and type(value["big"]) is bool


WISHES: list[tuple[dict[str, Any], Callable[[str], Any]]] = [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}}, is_sized),
    ({"guided_json": SCHEMA}, is_sized),
    ({"guided_json": json.dumps(SCHEMA)}, is_sized),
    ({"structured_outputs": {"json": SCHEMA}}, is_sized),
    ({"response_format": {"type": "json_object"}, "temperature": 0.1}, lambda text: type(json.loads(text)) is dict),
    ({"guided_regex": "(ab|c){2,4}"}, lambda text: re.fullmatch("(ab|c){2,4}", text)),
    ({"guided_choice": ["yes", "no"]}, lambda text: text in ("yes", "no")),
    ({"guided_grammar": 'start: "x" n\nn: /[0-9]{2}/'}, lambda text: re.fullmatch("x[0-9][0-9]", text)),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "is_right"), WISHES, ids=lambda value: str(value)[:40] * isinstance(value, dict))
def test_every_field_on_both_endpoints(
    random_model: Served, fields: dict[str, Any], is_right: Callable[[str], Any], stream: bool
) -> None:
    given = {"max_tokens": 300, "seed": 3, "stream": stream, **fields}
    for response in (random_model.chat(**given), random_model.complete(**given)):
        assert response.status_code == 200, response.text
        if stream:
            chunks = events(response.content)
            text, reason = text_of(chunks), chunks[-1]["choices"][0]["finish_reason"]
        else:
            [choice] = response.json()["choices"]
            text, reason = choice["text"] if "text" in choice else choice["message"]["content"], choice["finish_reason"]
        assert reason == "stop", text
        assert is_right(text), text


class Box(BaseModel):
    """Parsed by the openai client."""

    size: int
    label: str | None


def test_the_openai_client_parses_into_a_model_class(random_model: Served) -> None:
    answer = random_model.openai.chat.completions.parse(
        model="fake", messages=HI, response_format=Box, max_tokens=600, seed=1, temperature=0.2
    )
    assert isinstance(answer.choices[0].message.parsed, Box)


@pytest.mark.parametrize("decoder", ["beam", "speculative", "best-of", "majority"])
def test_it_composes_with_decoders(random_model: Served, decoder: str) -> None:
    response = random_model.chat(guided_json=SCHEMA, decoder=decoder, max_tokens=300)
    assert is_sized(response.json()["choices"][0]["message"]["content"])


def test_several_choices_each_obey(random_model: Served) -> None:
    response = random_model.chat(guided_json=SCHEMA, n=4, max_tokens=300)
    texts = [choice["message"]["content"] for choice in response.json()["choices"]]
    assert all(is_sized(text) for text in texts)
    assert len(set(texts)) > 1


@pytest.mark.parametrize(
    "fields", [{"response_format": {"type": "text"}}, {"response_format": {}}, {"guided_json": None}]
)
def test_formats_that_ask_for_nothing(random_model: Served, fields: dict[str, Any]) -> None:
    assert random_model.chat(max_tokens=3, **fields).status_code == 200
