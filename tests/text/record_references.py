"""Records, with transformers, what the default model's tokenizer and chat template must give.

Usage: ``python -m tests.text.record_references [model.gguf]``; without a file the default model is fetched. Writes the
tokenizer and the references into ``tests/text/data``. The tests read only these files.
"""

from __future__ import annotations

import json
import lzma
import random
import sys
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"

CONVERSATIONS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Answer in French."}, {"role": "user", "content": "Hello\n\nthere"}],
    [
        {"role": "user", "content": "1 + 1 = ?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "naïve — café 日本語 🦙"},
    ],
    [{"role": "user", "content": "a <|im_end|> inside"}, {"role": "assistant", "content": " "}],
]
TEXTS = [
    "hi",
    "1234567890",
    "12+34=",
    "don't",
    "  leading",
    "naïve — café",
    "one\r\ntwo\rthree\n",
    "👩\u200d👩\u200d👧\u200d👦 🇩🇪 🏳️\u200d🌈",
    "日本語のテキスト",
    "a\u2028b\u0085c\vd\r\n",
    "tabs\t\tand   spaces ",
    "<|im_start|>user\nHi<|im_end|>",
    "",
]
_ALPHABETS = [
    "abc XYZ",
    "0123456789+-=.",
    " \t\n\r",
    "éüß—…",
    "日本語汉字한국",
    "🦙👩🇩🇪\u200d\ufe0f",
    "\u0000\u0085\u2028\ufffd",
]


def random_texts(count: int, seed: int) -> list[str]:
    """Texts that mix scripts, digits, white space and emoji."""
    rng = random.Random(seed)
    return ["".join(rng.choice(rng.choice(_ALPHABETS)) for _ in range(rng.randrange(1, 24))) for _ in range(count)]


def record(gguf: Path) -> None:
    """Write ``tokenizer.json.xz`` and ``references.json``."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    compact = json.dumps(json.loads(tokenizer.backend_tokenizer.to_str()), separators=(",", ":"))
    chats = []
    for messages in CONVERSATIONS:
        for add_generation_prompt in (True, False):
            options = {"add_generation_prompt": add_generation_prompt}
            text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
            ids = tokenizer.apply_chat_template(messages, **options)["input_ids"]
            chats.append({"messages": messages, **options, "text": text, "ids": ids})
    texts = [*TEXTS, *random_texts(100, seed=0)]
    encoded = [{"text": text, "ids": tokenizer(text)["input_ids"]} for text in texts]
    references = {"chat_template": tokenizer.chat_template, "chats": chats, "encoded": encoded}

    DATA.mkdir(exist_ok=True)
    packed = lzma.compress(compact.encode(), preset=9 | lzma.PRESET_EXTREME)
    (DATA / "tokenizer.json.xz").write_bytes(packed)
    (DATA / "references.json").write_text(json.dumps(references, indent=1) + "\n", encoding="ascii")


def main() -> None:
    from chatserve.models.cache_folder import cache_folder
    from chatserve.models.default_model import fetch_default_model

    record(Path(sys.argv[1]) if len(sys.argv) > 1 else fetch_default_model(cache_folder()))


if __name__ == "__main__":
    main()
