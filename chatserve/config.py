"""`Config`: one frozen struct that flags, ``CHATSERVE_*`` variables and a TOML file all fill."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

DEFAULT_MODEL = "smollm2-135m-instruct"

PolicyName: TypeAlias = Literal["fcfs", "priority", "shortest-remaining"]
Preemption: TypeAlias = Literal["auto", "swap", "recompute"]


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set. The descriptions are the help texts of the flags."""

    model: Annotated[str, Meta(description="Hub id, folder, GGUF file, or the name of the default model.")] = (
        DEFAULT_MODEL
    )
    served_model_name: Annotated[
        str | None, Meta(description="Model id that clients see; default: derived from the model.")
    ] = None
    device: Annotated[Literal["auto", "cpu", "cuda"], Meta(description="Where to run the model.")] = "auto"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Meta(description="Type of weights and KV; auto is float32 on CPU."),
    ] = "auto"
    weights: Annotated[
        Literal["auto", "native", "int8", "fp32"],
        Meta(
            description="Weights of the fast CPU runner (Llama family): a GGUF file's own 4- and 8-bit blocks, 8 bits, "
            "or exact; auto takes the file's own where they are, unless --dtype names a type for transformers."
        ),
    ] = "auto"
    activations: Annotated[
        Literal["int8", "int16"],
        Meta(
            description="How finely the fast CPU runner rounds what 4-bit weights are multiplied with, row by row in "
            "groups of 32: int8 (16 where it would hurt) is up to twice as fast, int16 all but exact."
        ),
    ] = "int8"
    kv_dtype: Annotated[
        Literal["auto", "float32", "float16"],
        Meta(description="Type of the fast CPU runner's KV pages; auto is float16 unless its weights are exact."),
    ] = "auto"
    block_size: Annotated[int, Meta(description="Tokens in a KV block: a power of two from 1 to 256.")] = 16
    num_blocks: Annotated[int, Meta(description="KV blocks in the pool; default: from --kv-memory.", ge=1)] | None = (
        None
    )
    kv_memory: (
        Annotated[
            float,
            Meta(
                description="Memory for the KV pool in GiB; default: half of what is free, at most 4; on a GPU 90 %.",
                gt=0,
            ),
        ]
        | None
    ) = None
    max_model_len: (
        Annotated[int, Meta(description="Longest sequence in tokens; default: the model's context.", ge=1)] | None
    ) = None
    max_batch_tokens: Annotated[
        int, Meta(description="Token budget of one step: prefill chunks and decodes together.", ge=1)
    ] = 512
    max_prefill_tokens: (
        Annotated[
            int,
            Meta(
                description="Prompt tokens of one step, within its budget; fewer make answers pause less. "
                "Default: 128 on the CPU, all of the budget on a GPU.",
                ge=1,
            ),
        ]
        | None
    ) = None
    max_running_sequences: Annotated[
        int, Meta(description="Sequences that may run at once, over all requests.", ge=1)
    ] = 256
    max_sequences: Annotated[int, Meta(description="Sequences one request may hold.", ge=1)] = 512
    prefix_caching: Annotated[bool, Meta(description="Reuse the KV of equal beginnings of prompts.")] = True
    swap_space: Annotated[
        float, Meta(description="Host memory in GiB for preempted requests; 0: always recompute them.", ge=0)
    ] = 1.0
    preemption: Annotated[
        Preemption,
        Meta(
            description="What happens to the KV of a request that gives way; auto takes what is measured to be faster."
        ),
    ] = "auto"
    policy: Annotated[
        PolicyName,
        Meta(description="Who runs first, and who gives way last."),
    ] = "fcfs"
    max_queue: Annotated[int, Meta(description="Requests that may wait; more get 429.", ge=1)] = 1024
    decoders: Annotated[tuple[str, ...], Meta(description="Python files with decoders to register (repeatable).")] = ()
    decoder_timeout: Annotated[float, Meta(description="Seconds a decoder may run without yielding.", gt=0)] = 1.0
    prefixes: Annotated[tuple[str, ...], Meta(description="Prefixes to register: NAME=FILE (repeatable).")] = ()
    strict_plugins: Annotated[bool, Meta(description="A decoder that fails to import stops the start.")] = False
    host: Annotated[str, Meta(description="Address to listen on.", min_length=1)] = "127.0.0.1"
    port: Annotated[int, Meta(description="Port to listen on; 0 takes a free one.", ge=0, le=65535)] = 8000
    keepalive: Annotated[
        Literal["comment", "chunk", "off"],
        Meta(description="What a silent stream sends every --keepalive-interval seconds."),
    ] = "comment"
    keepalive_interval: Annotated[float, Meta(description="Seconds of silence before a keep-alive.", gt=0)] = 10.0
    shutdown_grace: Annotated[
        float, Meta(description="Seconds that running answers get to finish at shutdown.", ge=0)
    ] = 3.0
    max_body_bytes: Annotated[int, Meta(description="Largest request body in bytes.", ge=1)] = 4_000_000
    body_timeout: Annotated[
        float, Meta(description="Seconds a client may take to send a request's headers, and again its body.", gt=0)
    ] = 30.0
    stall_timeout: Annotated[
        float, Meta(description="Seconds after which a client that reads nothing of its answer is cut off.", gt=0)
    ] = 60.0
    api_keys: Annotated[
        tuple[str, ...],
        Meta(
            description="Key that clients must send as a bearer token (repeatable); default: none is needed. "
            "Others on this machine can read flags: prefer the variable or --api-key-file."
        ),
    ] = ()
    api_key_file: Annotated[str | None, Meta(description="File with further API keys, one a line.")] = None
    root_path: Annotated[
        str | None, Meta(description="Path under which a proxy serves this server, such as /llm; default: none.")
    ] = None
    ssl_certfile: Annotated[str | None, Meta(description="Certificate (PEM) for TLS; default: plain HTTP.")] = None
    ssl_keyfile: Annotated[str | None, Meta(description="Private key (PEM), when the certificate file lacks it.")] = (
        None
    )
    cors_origins: Annotated[
        tuple[str, ...], Meta(description="Origins allowed by CORS (repeatable); default: none.")
    ] = ()
    log_format: Annotated[
        Literal["text", "json"], Meta(description="Lines of the log: for people or for machines.")
    ] = "text"
    log_level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="Verbosity of the log.")] = (
        "info"
    )
