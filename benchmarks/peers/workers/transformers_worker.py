"""Worker: stock transformers in float32 on the weights of the same file, one static batch."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.workers.loop import Run, serve


def prepare() -> Run:
    import torch

    from chatserve.config import Config
    from chatserve.models.cache_folder import cache_folder
    from chatserve.models.converted import open_converted
    from chatserve.models.default_model import fetch_default_model
    from chatserve.models.gguf_loading import build_model
    from chatserve.models.placement import choose_placement
    from chatserve.models.threads import prepare_threads

    prepare_threads()
    placement = choose_placement(Config(device="cpu", dtype="float32"))
    model: Any = build_model(open_converted(fetch_default_model(cache_folder()), cache_folder()), placement)
    model.set_attn_implementation("sdpa")

    def run(order: dict[str, Any], prompts: list[list[int]], num_tokens: int) -> None:
        given = torch.tensor(prompts)
        settings: dict[str, Any] = {"do_sample": False}
        if order["kind"] == "beam":
            settings["num_beams"] = order["width"]
        elif order["kind"] == "parallel":
            settings = {"do_sample": True, "num_return_sequences": order["width"]}
        with torch.inference_mode():
            answers = model.generate(
                given, attention_mask=torch.ones_like(given), pad_token_id=0, min_new_tokens=num_tokens,
                max_new_tokens=num_tokens, **settings,
            )  # fmt: skip
        assert answers.shape[1] == given.shape[1] + num_tokens

    return run


if __name__ == "__main__":
    serve(prepare)
