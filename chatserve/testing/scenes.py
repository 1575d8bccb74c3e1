"""What the conformance suite plays with: models, company for the decoder, and the plainest reading of the rules."""

from __future__ import annotations

from functools import cache
from typing import Any

from chatserve.decoding import Context, Params, Sampling, Sequence, complete, decoder
from chatserve.engine import GenerationRequest
from chatserve.models.batch import Int32Array
from chatserve.testing.byte_tokenizer import END_TOKEN_ID, VOCAB_SIZE
from chatserve.testing.fake_model import LogitsFunction, RandomLogits, Restricted

LETTERS = tuple(b"abcdefghijklmnopqrstuvwxyz .,")
LETTERS_AND_END = (*LETTERS, END_TOKEN_ID)


@decoder("conformance-neighbour")
async def neighbour(ctx: Context, prompt: Sequence, params: Params) -> None:
    """Parallel sampling, the company that the decoder under test gets."""
    answers = [prompt] + [prompt.fork() for _ in range(ctx.n - 1)]
    await complete(ctx, answers, publish=True)


SAMPLINGS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.0},
    {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.2},
    {"top_k": 5, "frequency_penalty": 0.5, "stop": ("e", "th")},
)


@cache
def random_model(seed: int, letters: tuple[int, ...] = LETTERS_AND_END, end_bias: float = 1.0) -> LogitsFunction:
    """Random logits that favour `letters` so clearly that nothing else is ever drawn."""
    random_logits = RandomLogits(VOCAB_SIZE, seed, scale=4.0, end_token_ids=(END_TOKEN_ID,), end_bias=end_bias)
    return Restricted(random_logits, lambda context: letters, penalty=60.0)


def has_read(context: Int32Array, prompt: str, num_more: int) -> bool:
    """Whether the context holds the prompt and at least `num_more` tokens behind it."""
    begin = bytes(context.clip(0, 255).astype("uint8")).find(prompt.encode())
    return begin >= 0 and len(context) >= begin + len(prompt) + num_more


def company_request(seed: int, n: int = 2, max_tokens: int = 8) -> GenerationRequest:
    """A request of the neighbour's."""
    sampling = Sampling(n=n, max_tokens=max_tokens, seed=seed, ignore_eos=True)
    return GenerationRequest(
        prompt_token_ids=tuple(f"request {seed}".encode()), sampling=sampling, decoder=neighbour.name
    )


def grammar(context: Int32Array | list[int]) -> tuple[int, ...]:
    """What may follow: after "x" only "y", after "y" the letters of "xz" or the end, else one of "xyz"."""
    last = int(context[-1])
    if last == ord("x"):
        return (ord("y"),)
    return (*b"xz", END_TOKEN_ID) if last == ord("y") else tuple(b"xyz")


def read_plainly(token_ids: list[int], sampling: Sampling) -> tuple[str, int]:
    """Text of the tokens, and how many there are up to the first that ends a hypothesis, by the plainest reading."""
    text = ""
    for length, token in enumerate(token_ids, 1):
        if token == END_TOKEN_ID and not sampling.ignore_eos:
            return text, length
        text += chr(token)
        found = [stop for stop in sampling.stop if text.endswith(stop) and length >= sampling.min_tokens]
        if found:
            return text.removesuffix(max(found, key=len)), length
    return text, len(token_ids)


def has_stopped(token_ids: list[int], sampling: Sampling) -> bool:
    """Whether the last token ended the hypothesis with "stop"."""
    text, _ = read_plainly(token_ids, sampling)
    return bool(token_ids) and len(text) < len(token_ids)
