"""`chatserve pull`: prints where the model lies, or says that it cannot be fetched."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from chatserve.cli.application import application


def pull(*arguments: str) -> Result:
    return CliRunner().invoke(application, ["pull", *arguments])


def test_without_a_model_the_default_is_fetched_into_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CHATSERVE_CACHE", str(tmp_path))
    monkeypatch.setattr("chatserve.models.default_model.fetch_default_model", lambda cache: cache / "model.gguf")
    assert pull().stdout == f"{tmp_path / 'model.gguf'}\n"


def test_a_local_file_is_where_it_is(tmp_path: Path) -> None:
    file = tmp_path / "mine.gguf"
    file.touch()
    assert pull(str(file)).stdout == f"{file}\n"


@pytest.mark.parametrize("name", ["./none.gguf", "none.gguf", "/no/such/folder", "../none/none"])
def test_a_file_that_is_not_there_is_not_looked_for_in_the_hub(name: str) -> None:
    result = pull(name)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"Error: {name}: no such file or folder, and neither a hub id")


def test_a_model_that_cannot_be_fetched_is_one_line() -> None:
    result = pull("some/model")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: some/model: cannot download it from the hub: ")
    assert result.stderr.count("\n") == 1
