"""`LLM`, the engine in a Python program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from chatserve.engine import LLM
from chatserve.errors import RequestError

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.timeout(600)  # a fresh machine compiles the kernels and fetches the model first


def test_the_example_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    [example] = [code for code in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "LLM(" in code]
    exec(compile(example, "README.md", "exec"), {})
    first, second = capsys.readouterr().out.split("Usage(", 1)
    assert "colour" in first
    assert second.count("completion_tokens=32") == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_tokens", "x"), ("temperature", None), ("stop", "one"), ("stop", [1]), ("seed", 1.5), ("top_k", True)],
)
def test_values_of_a_wrong_type_are_refused_by_name(llm: LLM, name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"^{name}") as caught:
        llm.generate("Hi", **{name: value})
    assert caught.value.param == name


def test_lists_are_as_good_as_tuples(llm: LLM) -> None:
    [completion] = llm.generate("1, 2, 3, 4,", temperature=0, max_tokens=30, stop=[" 7"], logit_bias={11: -1})
    assert " 7" not in completion.outputs[0].text
