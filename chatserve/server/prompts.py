"""From messages and prompts to token ids; whoever has long ones calls this off the event loop."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec

from chatserve.engine.async_engine import AsyncEngine
from chatserve.errors import ContextLengthError, RequestError
from chatserve.server.bodies import ChatBody, ContentPart, Message, ToolCall
from chatserve.text import Vocabulary
from chatserve.text.tool_format import has_short_ids, with_short_ids, with_tools_told

_MAX_PROMPTS = 1024

# Special tokens stand for texts that `Vocabulary.token_bytes` does not tell; none is longer than this.
_LONGEST_SPECIAL_TOKEN = 64

_TEMPLATE_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def chat_prompt(engine: AsyncEngine, messages: list[Message], *, add_generation_prompt: bool = True) -> list[int]:
    """Token ids of a conversation, by the model's chat template. Raises RequestError (no template, bad message)."""
    turns = template_messages(messages)
    return render_prompt(engine, turns, add_generation_prompt=add_generation_prompt)


def template_messages(messages: list[Message]) -> list[dict[str, Any]]:
    """Messages as chat templates take them. Raises RequestError that names the bad field."""
    return [_template_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def render_prompt(
    engine: AsyncEngine,
    turns: list[dict[str, Any]],
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    tools: Sequence[dict[str, Any]] = (),
) -> list[int]:
    """Token ids of template messages. Raises RequestError when there is no template or they are too long.

    `continue_final_message` ends them behind the content of the last message, instead of behind the message. Where the
    template has no place for tools, the messages tell of them.
    """
    template = engine.chat_template
    if template is None:
        raise RequestError(
            f"The model {engine.info.name} has no chat template; use /v1/completions.",
            param="messages",
            code="unsupported_value",
        )
    if not template.takes_tools:
        turns, tools = with_tools_told(turns, tools), ()
    elif has_short_ids(template.source):
        turns = with_short_ids(turns)
    _check_length(engine, sum(len(turn["content"]) for turn in turns) + len(msgspec.json.encode(tools)), "messages")
    if continue_final_message:
        text = template.render_unfinished(turns, tools=list(tools) or None)
    else:
        text = template.render(turns, add_generation_prompt=add_generation_prompt, tools=list(tools) or None)
    return engine.vocabulary.encode(text, add_special_tokens=False)


def check_continuation(body: ChatBody) -> None:
    """Refuse to continue what is no assistant's message, and to continue and begin a turn at once."""
    if not body.continue_final_message:
        return
    if body.messages[-1].role != "assistant":
        raise RequestError(
            "continue_final_message needs an assistant's message as the last one.",
            param="continue_final_message",
            code="invalid_value",
        )
    if body.add_generation_prompt:
        raise RequestError(
            "add_generation_prompt and continue_final_message exclude each other.",
            param="add_generation_prompt",
            code="invalid_value",
        )


def _template_message(message: Message, path: str) -> dict[str, Any]:
    role = _TEMPLATE_ROLES.get(message.role)
    if role is None:
        allowed = ", ".join(_TEMPLATE_ROLES)
        raise RequestError(
            f"{path}.role is {message.role[:80]!r}; it must be one of {allowed}.",
            param=f"{path}.role",
            code="invalid_value",
        )
    has_calls = role == "assistant" and bool(message.tool_calls)
    content = "" if has_calls and message.content is None else _text_of(message.content, f"{path}.content")
    turn: dict[str, Any] = {"role": role, "content": content}
    if has_calls:
        turn["tool_calls"] = [_template_call(call) for call in message.tool_calls or ()]
    if message.name is not None:
        turn["name"] = message.name
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    return turn


def _template_call(call: ToolCall) -> dict[str, Any]:
    """A call as templates take it: they write the arguments as JSON themselves."""
    arguments: Any = call.function.arguments
    # What a model has written need not be JSON: then it is shown to it as it was.
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        arguments = msgspec.json.decode(arguments)
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def _text_of(content: str | list[ContentPart] | None, path: str) -> str:
    """The text of a message; several parts are joined without anything between them."""
    if content is None:
        raise RequestError(f"{path} is missing.", param=path, code="missing_required_parameter")
    if isinstance(content, str):
        return content
    texts: list[str] = []
    for index, part in enumerate(content):
        if part.type != "text":
            where = f"{path}[{index}].type"
            raise RequestError(
                f"{where} is {part.type[:80]!r}; only 'text' is supported.", param=where, code="unsupported_value"
            )
        if part.text is None:
            where = f"{path}[{index}].text"
            raise RequestError(f"{where} is missing.", param=where, code="missing_required_parameter")
        texts.append(part.text)
    return "".join(texts)


def prompt_tokens(engine: AsyncEngine, text: str, param: str, *, add_special_tokens: bool = True) -> list[int]:
    """Token ids of a plain prompt, with what the tokenizer adds. Raises ContextLengthError when far too long."""
    _check_length(engine, len(text), param)
    return engine.vocabulary.encode(text, add_special_tokens=add_special_tokens)


def _check_length(engine: AsyncEngine, num_characters: int, param: str) -> None:
    """Refuse, without tokenising it, what would not fit even if every token were the longest there is."""
    least, limit = num_characters // _longest_token(engine.vocabulary), engine.info.max_model_len
    if least >= limit:
        raise ContextLengthError(
            f"The {num_characters} characters of {param} are at least {least} tokens; "
            f"the context of {engine.info.name} is {limit} tokens.",
            param=param,
        )


@lru_cache(maxsize=8)
def _longest_token(vocabulary: Vocabulary) -> int:
    """Most bytes, so also most characters, that one token stands for."""
    longest = max(len(vocabulary.token_bytes(token_id)) for token_id in range(vocabulary.size))
    return max(longest, _LONGEST_SPECIAL_TOKEN)


def split_prompts(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """The prompts of a completion: a string, strings, ids, or lists of ids. Raises RequestError for a mixture."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestError("prompt is an empty list.", param="prompt", code="invalid_value")
    if len(prompt) > _MAX_PROMPTS and not isinstance(prompt[0], int):
        raise RequestError(f"prompt holds more than {_MAX_PROMPTS} prompts.", param="prompt", code="invalid_value")
    kind = type(prompt[0])
    for index, item in enumerate(prompt):
        if type(item) is not kind:
            raise RequestError(
                "prompt must hold only strings, only token ids, or only lists of token ids.",
                param=f"prompt[{index}]",
                code="invalid_type",
            )
    if kind is int:
        return [[item for item in prompt if isinstance(item, int)]]
    return [item for item in prompt if not isinstance(item, int)]


def check_prompt_ids(engine: AsyncEngine, token_ids: Sequence[int], param: str) -> None:
    """Refuse an empty prompt, ids outside the vocabulary, and a prompt that leaves no room for one token."""
    if not token_ids:
        raise RequestError(f"{param} is empty; at least one token is needed.", param=param, code="invalid_value")
    check_ids_in_vocabulary(engine, token_ids, param)
    limit = engine.info.max_model_len
    if len(token_ids) >= limit:
        raise ContextLengthError(
            f"The prompt has {len(token_ids)} tokens; the context of {engine.info.name} is {limit} tokens, "
            "and at least one must be left for the answer.",
            param=param,
        )


def check_ids_in_vocabulary(engine: AsyncEngine, token_ids: Sequence[int], param: str) -> None:
    """Raises RequestError when an id is none of the vocabulary's."""
    size = engine.vocabulary.size
    if token_ids and (min(token_ids) < 0 or max(token_ids) >= size):
        raise RequestError(f"{param} holds a token id outside 0..{size - 1}.", param=param, code="invalid_value")
