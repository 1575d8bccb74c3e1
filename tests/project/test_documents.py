"""The documents: generated parts are up to date, links lead somewhere, and the README's decoder does what it says.

``python tests/project/test_documents.py`` (or ``make docs``) writes the generated parts anew.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chatserve.configuration import Setting, settings
from chatserve.decoding import Sampling
from chatserve.decoding.registry import Registry
from chatserve.engine import Engine, EngineLimits, GenerationRequest
from chatserve.engine.llm import run_all
from chatserve.testing import VOCAB_SIZE, FakeRunner, RandomLogits, byte_vocabulary

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
PROMPT_LEN, MAX_TOKENS = 40, 6


def configuration_table() -> str:
    rows = ["| flag | variable | default | |", "|---|---|---|---|", *map(_setting_row, settings().values())]
    return "\n".join(rows) + "\n"


def _setting_row(setting: Setting) -> str:
    flag = "`MODEL`, `--model`" if setting.name == "model" else f"`{setting.flag}`"
    default = "" if setting.default in (None, ()) else f"`{_toml(setting.default)}`"
    choices = f" One of {', '.join(f'`{choice}`' for choice in setting.choices)}." if setting.choices else ""
    return f"| {flag} | `{setting.variable}` | {default} | {setting.description}{choices} |"


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def module_list() -> str:
    """Every module with the first paragraph of its docstring, package by package."""
    files = [path for package in ("chatserve", "decoders", "cuda_kernels") for path in (ROOT / package).rglob("*.py")]
    packages = sorted({path.parent for path in files})
    return "\n".join(_package_section(package) for package in packages)


def _package_section(package: Path) -> str:
    modules = [path for path in sorted(package.glob("*.py")) if path.name != "__init__.py"]
    lines = [f"- `{path.stem}`: {_first_paragraph(path)}\n" for path in modules]
    about = _first_paragraph(package / "__init__.py")
    return f"### `{package.relative_to(ROOT)}/`\n\n" + (f"{about}\n\n" if about else "") + "".join(lines)


def _first_paragraph(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].replace("``", "`").split())


GENERATED: dict[str, tuple[Path, Callable[[], str]]] = {
    "configuration": (ROOT / "README.md", configuration_table),
    "modules": (ROOT / "docs" / "structure.md", module_list),
}


def _with_part(text: str, name: str, part: str) -> str:
    begin, end = f"<!-- {name}: written by make docs -->\n", f"<!-- end of {name} -->"
    before, rest = text.split(begin)
    return before + begin + "\n" + part + "\n" + end + rest.split(end)[1]


@pytest.mark.parametrize("name", GENERATED)
def test_generated_parts_are_up_to_date(name: str) -> None:
    path, make = GENERATED[name]
    text = path.read_text(encoding="utf-8")
    assert text == _with_part(text, name, make()), "run: make docs"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files(document: Path) -> None:
    for target in re.findall(r"\]\(((?!http)[^)#]+)\)", document.read_text(encoding="utf-8")):
        assert (document.parent / target).exists(), target


def test_the_decoder_of_the_readme_runs_and_shares_the_prompt(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    [source] = [code for code in blocks if "@decoder" in code]
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


def write_generated_parts() -> None:
    for name, (path, make) in GENERATED.items():
        path.write_text(_with_part(path.read_text(encoding="utf-8"), name, make()), encoding="utf-8")


if __name__ == "__main__":
    write_generated_parts()
