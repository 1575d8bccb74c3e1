"""Body of ``POST /v1/responses``, and the chat request that it means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from chatserve.errors import RequestError
from chatserve.server.bodies import (
    ChatBody,
    ContentPart,
    FunctionCall,
    FunctionDefinition,
    FunctionName,
    GenerationBody,
    JsonSchemaFormat,
    Message,
    Parts,
    ResponseFormat,
    Tool,
    ToolCall,
    ToolChoice,
)

_TEXT_PARTS = ("input_text", "output_text", "text")
_LOGPROBS = "message.output_text.logprobs"


class InputItem(msgspec.Struct, kw_only=True):
    """One item of the input: a message, a call that the model made, or the output of one."""

    type: str = "message"
    role: str | None = None
    content: str | Parts | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | Parts | None = None


class TextFormat(msgspec.Struct, kw_only=True):
    """What the answer must look like."""

    type: str = "text"
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None


class TextOptions(msgspec.Struct, kw_only=True):
    """Options of the answer's text."""

    format: TextFormat | None = None
    verbosity: str | None = None


class FunctionTool(msgspec.Struct, kw_only=True):
    """A function that may be called; only ``type: "function"`` is supported."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionChoice(msgspec.Struct, kw_only=True):
    """The function that has to be called."""

    type: str
    name: str | None = None


class ResponsesBody(GenerationBody, kw_only=True):
    """Body of ``POST /v1/responses``. Nothing is stored, so a conversation is always given whole."""

    input: str | Annotated[list[InputItem], Meta(max_length=8192)]
    instructions: str | None = None
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    text: TextOptions | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: str | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    truncation: str | None = None
    previous_response_id: str | None = None
    conversation: Any = None
    background: bool | None = None
    prompt: Any = None


_UNSUPPORTED: dict[str, Callable[[Any], bool]] = {
    # field: whether a value asks for what is missing here
    "n": lambda value: value != 1,
    "previous_response_id": lambda value: True,
    "conversation": lambda value: True,
    "prompt": lambda value: True,
    "background": bool,
    "truncation": lambda value: value != "disabled",
}


def chat_body(body: ResponsesBody) -> ChatBody:
    """The same wish as a chat request. Raises RequestError that names a field of `body`."""
    for field, is_missing in _UNSUPPORTED.items():
        value = getattr(body, field)
        if value is not None and is_missing(value):
            raise RequestError(
                f"{field} is not supported: nothing is stored, a response has one answer and its whole input.",
                param=field,
                code="unsupported_value",
            )
    shared = {name: getattr(body, name) for name in GenerationBody.__struct_fields__}
    wants_logprobs = _LOGPROBS in (body.include or ())
    options = body.text or TextOptions()
    return ChatBody(
        **{**shared, "response_format": _response_format(options.format) or body.response_format},
        messages=_messages(body),
        max_completion_tokens=body.max_output_tokens,
        logprobs=wants_logprobs or None,
        top_logprobs=body.top_logprobs if wants_logprobs else None,
        tools=[_tool(tool, f"tools[{index}]") for index, tool in enumerate(body.tools or ())],
        tool_choice=_tool_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
    )


def in_terms_of_responses(error: RequestError) -> RequestError:
    """A refusal of the chat request, told about the field that it came from."""
    if error.param is not None:
        told = error.param
        for chat_field, field in _FIELDS:
            told = told.replace(chat_field, field)
        error.message = error.message.replace(error.param, told)
        error.param = told
    return error


_FIELDS = (
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("messages", "input"),
    ("max_completion_tokens", "max_output_tokens"),
    ("max_tokens", "max_output_tokens"),
    (".function.", "."),
)


def _response_format(given: TextFormat | None) -> ResponseFormat | None:
    if given is None:
        return None
    schema = JsonSchemaFormat(name=given.name, schema=given.schema) if given.type == "json_schema" else None
    return ResponseFormat(type=given.type, json_schema=schema)


def _tool(tool: FunctionTool, path: str) -> Tool:
    if tool.type != "function":
        raise RequestError(
            f"{path}.type is {tool.type[:80]!r}; only 'function' is supported.",
            param=f"{path}.type",
            code="unsupported_value",
        )
    function = FunctionDefinition(
        name=tool.name or "", description=tool.description, parameters=tool.parameters, strict=tool.strict
    )
    return Tool(type="function", function=function)


def _tool_choice(given: str | FunctionChoice | None) -> str | ToolChoice | None:
    if not isinstance(given, FunctionChoice):
        return given
    return ToolChoice(type=given.type, function=FunctionName(name=given.name or ""))


def _messages(body: ResponsesBody) -> list[Message]:
    items = [InputItem(role="user", content=body.input)] if isinstance(body.input, str) else body.input
    messages = [] if body.instructions is None else [Message(role="system", content=body.instructions)]
    for index, item in enumerate(items):
        _add_item(messages, item, f"input[{index}]")
    if not messages:
        raise RequestError("input holds no message.", param="input", code="invalid_value")
    return messages


def _add_item(messages: list[Message], item: InputItem, path: str) -> None:
    match item.type:
        case "message":
            if item.role is None:
                raise RequestError(f"{path}.role is missing.", param=f"{path}.role", code="missing_required_parameter")
            messages.append(Message(role=item.role, content=_parts(item.content, f"{path}.content")))
        case "function_call":
            _add_call(messages, item, path)
        case "function_call_output":
            output = _parts(item.output, f"{path}.output")
            messages.append(Message(role="tool", content=output, tool_call_id=item.call_id))
        case "reasoning":
            pass  # what a model has thought is not shown to it again
        case other:
            raise RequestError(
                f"{path}.type is {other[:80]!r}; it must be message, function_call or function_call_output.",
                param=f"{path}.type",
                code="unsupported_value",
            )


def _add_call(messages: list[Message], item: InputItem, path: str) -> None:
    """Calls belong to the assistant's message before them, if there is one."""
    if not item.name:
        raise RequestError(f"{path}.name is missing.", param=f"{path}.name", code="missing_required_parameter")
    call = ToolCall(id=item.call_id, function=FunctionCall(name=item.name, arguments=item.arguments or "{}"))
    if messages and messages[-1].role == "assistant":
        last = messages[-1]
        if last.tool_calls is None:
            last.tool_calls = []
        last.tool_calls.append(call)
    else:
        messages.append(Message(role="assistant", content="", tool_calls=[call]))


def _parts(content: str | list[ContentPart] | None, path: str) -> str | list[ContentPart]:
    if content is None:
        raise RequestError(f"{path} is missing.", param=path, code="missing_required_parameter")
    if isinstance(content, str):
        return content
    for index, part in enumerate(content):
        if part.type not in _TEXT_PARTS or part.text is None:
            where = f"{path}[{index}]"
            raise RequestError(f"{where} must be a part with text.", param=where, code="unsupported_value")
    return [ContentPart(type="text", text=part.text) for part in content]
