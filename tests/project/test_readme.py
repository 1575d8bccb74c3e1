"""The README's examples run, and its table of settings is the one that `Config` gives.

``python tests/project/test_readme.py`` writes the table anew.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from chatserve.configuration import Setting, settings
from chatserve.decoding import Sampling
from chatserve.decoding.registry import Registry
from chatserve.engine import Engine, EngineLimits, GenerationRequest
from chatserve.engine.llm import run_all
from chatserve.testing import VOCAB_SIZE, FakeRunner, RandomLogits, byte_vocabulary

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
BEGIN = "<!-- configuration: written by tests/project/test_readme.py -->\n"
END = "<!-- end of configuration -->"
PROMPT_LEN, MAX_TOKENS = 40, 6


def configuration_table() -> str:
    rows = ["| flag | variable | default | |", "|---|---|---|---|", *map(_row, settings().values())]
    return "\n".join(rows) + "\n"


def _row(setting: Setting) -> str:
    flag = "`MODEL`, `--model`" if setting.name == "model" else f"`{setting.flag}`"
    default = "" if setting.default in (None, ()) else f"`{_toml(setting.default)}`"
    choices = f" One of {', '.join(f'`{choice}`' for choice in setting.choices)}." if setting.choices else ""
    return f"| {flag} | `{setting.variable}` | {default} | {setting.description}{choices} |"


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _with_table(text: str) -> str:
    before, rest = text.split(BEGIN)
    return before + BEGIN + configuration_table() + END + rest.split(END)[1]


def test_the_table_of_settings_is_up_to_date() -> None:
    text = README.read_text(encoding="utf-8")
    assert text == _with_table(text), "run: python tests/project/test_readme.py"


def test_the_decoder_of_the_readme_runs_and_shares_the_prompt(tmp_path: Path) -> None:
    [source] = [code for code in re.findall(r"```python\n(.*?)```", README.read_text(), re.S) if "@decoder" in code]
    file = tmp_path / "best_draft.py"
    file.write_text(source)
    registry = Registry.load([str(file)], strict=True)
    engine = Engine(FakeRunner(RandomLogits(VOCAB_SIZE)), byte_vocabulary(), registry, EngineLimits(64))
    [completion] = run_all(engine, [_request(decoder="best-draft", decoder_params={"drafts": 3})])
    assert len(completion.outputs[0].token_ids) == MAX_TOKENS
    assert completion.usage.completion_tokens == MAX_TOKENS
    assert completion.usage.computed_tokens == PROMPT_LEN + 3 * (MAX_TOKENS - 1), "the prompt is computed once"


def _request(**fields: Any) -> GenerationRequest:
    sampling = Sampling(max_tokens=MAX_TOKENS, ignore_eos=True, seed=1)
    return GenerationRequest(prompt_token_ids=tuple(range(PROMPT_LEN)), sampling=sampling, **fields)


def test_links_and_files_named_in_the_readme_exist() -> None:
    for target in re.findall(r"\]\(((?!http)[^)#]+)\)", README.read_text(encoding="utf-8")):
        assert (ROOT / target).exists(), target


if __name__ == "__main__":
    README.write_text(_with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
