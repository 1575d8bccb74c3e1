"""Records, with transformers, the beam searches of the default model: every hypothesis returned, and its score.

Usage: ``python -m tests.default_model.record_beam_references``. Transformers reads the same GGUF by its own code. The
answers to the questions end by themselves; behind the texts a full stop or a comma ends an answer as well, so that
hypotheses of many lengths compete and the length penalty and the stopping rule decide. The prompts of a kind are
searched from as one padded batch. Length penalty and stopping rule choose among hypotheses and do not change the
way of the live beams; so most forwards of a search repeat those of an earlier one, and are remembered.
"""

from __future__ import annotations

import itertools
import json
from functools import wraps
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data" / "beam.json"
NUM_TOKENS = 12
WIDTHS = (2, 4, 8)
LENGTH_PENALTIES = (2.0, 1.0, 0.0, -1.0)
EARLY_STOPPING: tuple[bool | str, ...] = ("never", False, True)
END_TOKEN_ID = 2
TEXT_ENDS = (".", ",")

QUESTIONS = [
    "What is the capital of France?",
    "What colour is the sky? One word.",
    "Say yes or no: is water wet?",
    "Name one planet.",
    "What is two plus two?",
]
TEXTS = [
    "Once upon a time",
    "In the beginning the Universe was created",
    "The three laws of thermodynamics state that",
    "The cat sat on",
    "My favourite colours are red",
]


def record() -> None:
    """Write for each prompt its ids, its end tokens, all hypotheses found, and for each setting the ones returned."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from chatserve.models.cache_folder import cache_folder
    from chatserve.models.default_model import fetch_default_model

    gguf = fetch_default_model(cache_folder())
    tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    remember_forwards(model)
    questions = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for question in QUESTIONS
    ]
    text_ends = [END_TOKEN_ID] + [tokenizer(end)["input_ids"][0] for end in TEXT_ENDS]
    answers_to_questions = _searches(model, questions, [END_TOKEN_ID])
    continued_texts = _searches(model, [tokenizer(text)["input_ids"] for text in TEXTS], text_ends)
    DATA.parent.mkdir(exist_ok=True)
    DATA.write_text(json.dumps(answers_to_questions + continued_texts, separators=(",", ":")) + "\n")


def remember_forwards(model: Any) -> None:
    """Let the model answer a batch of sequences that it has seen before from memory: the same numbers, in no time."""
    import torch
    from transformers.modeling_outputs import CausalLMOutputWithPast

    remembered: dict[tuple[int, bytes], Any] = {}
    whole: list[Any] = []  # the sequences of the coming forward, which itself is given their last tokens only
    forward, prepare = model.forward, model.prepare_inputs_for_generation

    @wraps(prepare)  # generate looks at the arguments' names
    def prepared(input_ids: Any, **inputs: Any) -> Any:
        whole[:] = [input_ids]
        return prepare(input_ids, **inputs)

    @wraps(forward)
    def remembering(**inputs: Any) -> Any:
        [sequences], cache = whole, inputs["cache"]
        key = (len(sequences), sequences.numpy().tobytes())
        if key not in remembered:
            if cache.get_seq_length() + inputs["input_ids"].shape[1] < sequences.shape[1]:  # earlier steps were skipped
                mask = inputs["attention_mask"]
                positions = (mask.cumsum(-1) - 1).clamp(min=0)
                inputs = {"input_ids": sequences, "attention_mask": mask, "position_ids": positions, "use_cache": False}
            with torch.no_grad():
                remembered[key] = forward(**inputs).logits[:, -1:].clone()
        return CausalLMOutputWithPast(logits=remembered[key], cache=cache)

    model.forward, model.prepare_inputs_for_generation = remembering, prepared


def _searches(model: Any, prompts: list[list[int]], end_token_ids: list[int]) -> list[dict[str, Any]]:
    """For each prompt all searches; hypotheses are listed once and named by their place."""
    found: list[dict[tuple[int, ...], int]] = [{} for _ in prompts]
    searches: list[list[dict[str, Any]]] = [[] for _ in prompts]
    for width, length_penalty, early_stopping in itertools.product(WIDTHS, LENGTH_PENALTIES, EARLY_STOPPING):
        params = {"width": width, "length_penalty": length_penalty, "early_stopping": early_stopping}
        for number, returned in enumerate(_search(model, prompts, end_token_ids, params)):
            places = [found[number].setdefault(answer, len(found[number])) for answer, _ in returned]
            scores = [round(score, 6) for _, score in returned]
            searches[number].append({"params": params, "hypotheses": places, "scores": scores})
        print(params, flush=True)
    return [
        {
            "prompt": prompt,
            "end_token_ids": end_token_ids,
            "hypotheses": list(map(list, found[number])),
            "searches": searches[number],
        }
        for number, prompt in enumerate(prompts)
    ]


def _search(
    model: Any, prompts: list[list[int]], end_token_ids: list[int], params: dict[str, Any]
) -> list[list[tuple[tuple[int, ...], float]]]:
    """For each prompt as many hypotheses as the search is wide, best first, up to and including their end token."""
    import torch

    longest = max(map(len, prompts))
    padded = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    generated = model.generate(
        padded,
        attention_mask=mask,
        do_sample=False,
        num_beams=params["width"],
        num_return_sequences=params["width"],
        length_penalty=params["length_penalty"],
        early_stopping=params["early_stopping"],
        eos_token_id=end_token_ids,
        pad_token_id=0,
        max_new_tokens=NUM_TOKENS,
        output_scores=True,
        return_dict_in_generate=True,
    )
    answers = [_up_to_its_end(row[longest:], end_token_ids) for row in generated.sequences.tolist()]
    returned = list(zip(answers, generated.sequences_scores.tolist(), strict=True))
    width = params["width"]
    return [returned[start : start + width] for start in range(0, len(returned), width)]


def _up_to_its_end(answer: list[int], end_token_ids: list[int]) -> tuple[int, ...]:
    lengths = [place + 1 for place, token in enumerate(answer) if token in end_token_ids]
    return tuple(answer[: min(lengths, default=len(answer))])


if __name__ == "__main__":
    record()
