"""Request bodies as msgspec structs. ``null`` means absent everywhere; unknown fields are ignored.

Types are checked while decoding; ranges and combinations in `chatserve.server.validation`.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta


class ContentPart(msgspec.Struct, kw_only=True):
    """One part of a message; only ``type: "text"`` is supported."""

    type: str
    text: str | None = None


Parts: TypeAlias = Annotated[list[ContentPart], Meta(max_length=1024)]


class FunctionCall(msgspec.Struct, kw_only=True):
    """The function that an assistant's message calls; `arguments` is JSON."""

    name: str
    arguments: str = "{}"


class ToolCall(msgspec.Struct, kw_only=True):
    """One call in an assistant's message."""

    function: FunctionCall
    id: str | None = None
    type: str = "function"


class Message(msgspec.Struct, kw_only=True):
    """One turn of a chat."""

    role: str
    content: str | Parts | None = None
    name: str | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=128)] | None = None
    tool_call_id: str | None = None


Messages: TypeAlias = Annotated[list[Message], Meta(min_length=1, max_length=8192)]
Choices: TypeAlias = Annotated[list[str], Meta(max_length=4096)]


class StreamOptions(msgspec.Struct, kw_only=True):
    """What a stream carries besides text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchemaFormat(msgspec.Struct, kw_only=True):
    """A named JSON schema; it is always enforced, whatever ``strict`` says."""

    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """What the answer must look like: ``text``, ``json_object`` or ``json_schema``."""

    type: str = "text"
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True):
    """The newer place of the ``guided_*`` fields."""

    json: dict[str, Any] | bool | str | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: Choices | None = None


class GenerationBody(msgspec.Struct, kw_only=True):
    """The fields that chat and legacy completions share."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None

    decoder: str | None = None
    decoder_params: dict[str, Any] | None = None
    use_beam_search: bool | None = None
    num_beams: int | None = None
    best_of: int | None = None
    cache_salt: str | None = None
    priority: int | None = None
    timeout: float | None = None
    return_trace: bool | None = None

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | bool | str | None = None
    guided_regex: str | None = None
    guided_grammar: str | None = None
    guided_choice: Choices | None = None


class FunctionDefinition(msgspec.Struct, kw_only=True):
    """A function that may be called; `parameters` is the JSON schema of its arguments, an object."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    """Something that may be called; only ``type: "function"`` is supported."""

    type: str = "function"
    function: FunctionDefinition | None = None


class FunctionName(msgspec.Struct, kw_only=True):
    """A function of `tools`."""

    name: str


class ToolChoice(msgspec.Struct, kw_only=True):
    """The function that has to be called."""

    type: str = "function"
    function: FunctionName | None = None


class ChatBody(GenerationBody, kw_only=True):
    """Body of ``POST /v1/chat/completions``."""

    messages: Messages
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    tools: list[Tool] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: str | dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None


class CompletionBody(GenerationBody, kw_only=True):
    """Body of ``POST /v1/completions``. A list as prompt holds only strings, only ids, or only lists of ids."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None


class TokenizeBody(msgspec.Struct, kw_only=True):
    """Body of ``POST /tokenize``: either `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    """Body of ``POST /detokenize``."""

    model: str | None = None
    tokens: list[int]
