"""What `return_trace` shows of a search: a tree whose paths are the answers, with every candidate and its fate."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

import numpy as np
import pytest

from chatserve.decoding import Context, Params, SearchTree, Sequence, decoder
from chatserve.engine import GenerationRequest
from chatserve.testing import VOCAB_SIZE, RandomLogits, Restricted, TrialEngine
from tests.decoders.built_in import BUILT_IN, request

Node: TypeAlias = dict[str, Any]
LETTERS = tuple(b"abcdef")
SEARCHES: list[tuple[str, dict[str, Any], int]] = [
    ("beam", {"width": 3}, 2),
    ("beam", {"width": 4, "early_stopping": True, "length_penalty": 2.0}, 1),
    ("diverse-beam", {"width": 4, "groups": 2}, 2),
    ("parallel", {}, 3),
    ("best-of", {"best_of": 4}, 2),
    ("majority", {"votes": 3, "pattern": "[abc]"}, 1),
    ("speculative", {"ngram": 2, "draft": 4}, 1),
]


def model(seed: int) -> Restricted:
    """Few letters, so that drafts agree now and then, and an end token."""
    logits = RandomLogits(VOCAB_SIZE, seed, scale=2.0, end_token_ids=(256,), end_bias=0.5)
    return Restricted(logits, lambda context: (*LETTERS, 256), penalty=60.0)


def search(asked: GenerationRequest, seed: int) -> tuple[list[dict[str, Any]], list[list[int]]]:
    """Records of the trace, and the tokens of each choice."""
    [record] = TrialEngine([BUILT_IN[asked.decoder or ""]], model(seed)).run(asked)
    answers = [answer.token_ids for answer in record.answers()]
    return [traced for delta in record.deltas for traced in delta.trace], answers


def path(nodes: dict[int, Node], tip: int) -> list[Node]:
    """The nodes from the prompt to `tip`."""
    found = []
    while tip:
        found.append(nodes[tip])
        tip = nodes[tip]["parent"]
    return found[::-1]


def text_of(answer: list[int]) -> str:
    return "".join(chr(token) for token in answer if token < 256)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("name", "params", "n"), SEARCHES, ids=lambda value: value if isinstance(value, str) else "")
def test_the_paths_to_the_returned_nodes_are_the_answers(name: str, params: dict[str, Any], n: int, seed: int) -> None:
    asked = request(name, n=n, seed=seed, max_tokens=7, prompt=b"abcabcab", params=params, return_trace=True)
    records, answers = search(asked, seed)
    assert [record["step"] for record in records] == list(range(len(records)))
    nodes = {node["id"]: node for record in records for node in record["nodes"]}
    assert list(nodes) == list(range(1, len(nodes) + 1))
    returned = {change["choice"]: change["id"] for change in records[-1]["changed"] if change["state"] == "returned"}
    assert sorted(returned) == list(range(n))
    for choice, tip in returned.items():
        way = path(nodes, tip)
        assert [node["token"] for node in way] == answers[choice]
        assert way[-1]["total"] == pytest.approx(sum(node["logprob"] for node in way))
        assert "".join(node["text"] for node in way if node["token"] < 256) == text_of(answers[choice])
    for node in nodes.values():
        above = nodes.get(node["parent"], {"id": 0, "state": "kept"})
        assert above["id"] < node["id"]
        assert above["state"] == "kept" or node.get("drafted"), "nothing grows from what ended or was dropped"


@pytest.mark.parametrize(("name", "params", "n"), SEARCHES, ids=lambda value: value if isinstance(value, str) else "")
def test_asking_for_a_trace_changes_no_answer(name: str, params: dict[str, Any], n: int) -> None:
    asked: dict[str, Any] = {"n": n, "seed": 5, "max_tokens": 7, "prompt": b"abcabcab", "params": params}
    records, traced = search(request(name, return_trace=True, **asked), 5)
    silent, plain = search(request(name, **asked), 5)
    assert records
    assert silent == []
    assert traced == plain


@pytest.mark.parametrize("seed", range(3))
def test_a_beams_candidates_are_the_best_by_hand_and_those_kept_the_best_of_them(seed: int) -> None:
    width, prompt = 3, list(b"abc")
    asked = request("beam", seed=seed, max_tokens=5, prompt=bytes(prompt), params={"width": width}, return_trace=True)
    records, _ = search(asked, seed)
    nodes = {node["id"]: node for record in records for node in record["nodes"]}
    live = {0: 0.0}
    for record in records[:-1]:
        expected = []
        for tip, total in live.items():
            context = prompt + [node["token"] for node in path(nodes, tip)]
            row = np.asarray(model(seed)(np.array(context, np.int32)), np.float64)
            row -= np.log(np.exp(row - row.max()).sum()) + row.max()
            expected += [(total + float(logprob), tip, token) for token, logprob in enumerate(row)]
        best = sorted(expected, key=lambda candidate: -candidate[0])[: 2 * width]
        found = [(node["parent"], node["token"]) for node in record["nodes"]]
        assert found == [(tip, token) for _, tip, token in best]
        assert [node["total"] for node in record["nodes"]] == pytest.approx([total for total, _, _ in best], abs=1e-4)
        going = [node for node in record["nodes"] if node["token"] != 256]
        if record is not records[-2]:
            assert [node["state"] == "kept" for node in going] == [place < width for place in range(len(going))]
        live = {node["id"]: node["total"] for node in record["nodes"] if node["state"] == "kept"}


def test_drafts_of_speculation_are_told_from_draws() -> None:
    agreed = rejected = 0
    for seed in range(8):
        asked = request("speculative", seed=seed, max_tokens=12, prompt=b"abcabcab", return_trace=True)
        nodes = [node for record in search(asked, seed)[0] for node in record["nodes"]]
        agreed += sum(node["state"] == "kept" for node in nodes if node.get("drafted"))
        rejected += sum(node["state"] == "dropped" for node in nodes if node.get("drafted"))
        assert all(node["state"] == "kept" for node in nodes if not node.get("drafted"))
    assert agreed > 0
    assert rejected > 0


def test_a_trace_that_begins_before_anything_is_published_streams() -> None:
    """Best-of publishes at its end; its clients see the search meanwhile."""
    asked = request("best-of", seed=1, max_tokens=6, ignore_eos=True, params={"best_of": 2}, return_trace=True)
    engine = TrialEngine([BUILT_IN["best-of"]], model(1))
    record = engine.start(asked)
    engine.step()
    engine.step()
    assert [traced["step"] for delta in record.deltas for traced in delta.trace] == [0, 1]
    assert all(delta.text == "" for delta in record.deltas)


def test_records_are_json_and_further_fields_go_along() -> None:
    @decoder("narrator")
    async def narrator(ctx: Context, prompt: Sequence, params: Params) -> None:
        tree = SearchTree(ctx, [prompt])
        [sample] = await ctx.sample([prompt])
        prompt.append(sample)
        tree.add(prompt, [sample, 98], "kept", why="because")
        tree.change(prompt, "dropped", reason=3)
        tree.step(mood="good")
        ctx.publish(prompt)
        ctx.finish()

    [record] = TrialEngine([narrator], model(2)).run(request("narrator", prompt=b"x", return_trace=True))
    [traced] = [json.loads(json.dumps(item)) for delta in record.deltas for item in delta.trace]
    first, second = traced["nodes"]
    assert (first["parent"], second["parent"], second["text"], second["logprob"]) == (0, 1, "b", None)
    assert (first["why"], traced["mood"], traced["changed"]) == (
        "because",
        "good",
        [{"id": 0, "state": "dropped", "reason": 3}],
    )
