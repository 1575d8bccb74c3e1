"""A vocabulary for tests: one token for each byte, so that ids can be read and written by hand."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from chatserve.text.chat_template import ChatTemplate
from chatserve.text.token_bytes import byte_to_character
from chatserve.text.vocabulary import Vocabulary

END_TOKEN = "<|end|>"
START_TOKEN = "<|start|>"
END_TOKEN_ID = 256
START_TOKEN_ID = 257
VOCAB_SIZE = 260

_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|start|>' + message['role'] + '\\n' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\\n' }}{% endif %}"
)


def byte_vocabulary(*, specials: Sequence[str] = (END_TOKEN, START_TOKEN), size: int = VOCAB_SIZE) -> Vocabulary:
    """A real byte-level tokenizer without merges: id b is byte b; the special tokens follow from 256 on.

    Args:
        specials: texts of the special tokens; the first (id 256) ends an answer.
        size: number of logits; ids behind the special tokens have no token, like padding rows of a real model.
    """
    tokenizer = Tokenizer(
        models.BPE(vocab={character: byte for byte, character in byte_to_character().items()}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    return Vocabulary(tokenizer, size=size, end_token_ids=(256,))


def byte_chat_template() -> ChatTemplate:
    """A ChatML-like template over the special tokens of `byte_vocabulary`."""
    return ChatTemplate(_CHAT_TEMPLATE, bos_token=START_TOKEN, eos_token=END_TOKEN)
