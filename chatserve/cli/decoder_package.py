"""`write_package`: a working decoder package, from which ``chatserve decoders new`` lets an author start."""

from __future__ import annotations

import keyword
import re
import sys
from pathlib import Path

from chatserve.decoding.registry import NAME_PATTERN
from chatserve.errors import RequestError

_PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "chatserve-{name}"
version = "0.1.0"
description = "The decoder {name} for chatserve"
readme = "README.md"
requires-python = ">=3.11"
# It runs in the environment of a chatserve checkout, so chatserve and msgspec are there. Do not list "chatserve" here:
# pip would fetch an unrelated project of that name.
dependencies = []

[project.optional-dependencies]
test = ["pytest"]

[project.entry-points."chatserve.decoders"]
{name} = "{module}:{module}"

[tool.hatch.build.targets.wheel]
only-include = ["{module}.py"]

[tool.pytest.ini_options]
pythonpath = ["."]
"""

_MODULE = '''\
"""The decoder `{name}`: sample several drafts and answer with the likeliest."""

from typing import Annotated

from msgspec import Meta

from chatserve.decoding import Context, Params, Rejected, Sequence, complete, decoder


class {title}Params(Params, frozen=True):
    """What a request may set: clients see types, bounds, defaults and descriptions."""

    drafts: Annotated[int, Meta(ge=1, le=32, description="Drafts to sample.")] = 4


@decoder("{name}", params={title}Params, sequences=lambda params, n: params.drafts)
async def {module}(ctx: Context, prompt: Sequence, params: {title}Params) -> None:
    """Sample several drafts and answer with the one that the model finds likeliest."""
    if ctx.n > 1:
        raise Rejected("n", f"is {{ctx.n}}, but {name} gives one answer")
    drafts = [prompt] + [prompt.fork() for _ in range(params.drafts - 1)]
    await complete(ctx, drafts)
    ctx.publish(max(drafts, key=lambda draft: draft.mean_logprob))
'''

_TEST = '''\
"""`{name}` does what every decoder must do."""

from chatserve.testing import DecoderConformance
from {module} import {module}


class Test{title}(DecoderConformance):
    decoder = {module}
    params = {{"drafts": 3}}
'''

_README = """\
# chatserve-{name}

A decoder for chatserve. Install it into the environment of the chatserve checkout that shall use it, which `make serve`
makes there as `.venv`. It has no dependencies of its own; the project called chatserve on PyPI is an unrelated one.

```sh
source path/to/the/checkout/.venv/bin/activate
pip install --editable '.[test]'
pytest
chatserve decoders show {name}
chatserve serve
```

Requests then name it: `{{"decoder": "{name}", "decoder_params": {{"drafts": 8}}}}`.
"""


def write_package(name: str, parent: Path) -> list[Path]:
    """Write the package into the new folder `parent / name`.

    Args:
        name: the decoder's: lower case letters, digits and dashes.
        parent: an existing folder.

    Returns:
        the files written.

    Raises:
        RequestError: the name cannot be used, or the folder exists.
    """
    module = name.replace("-", "_")
    if not re.fullmatch(NAME_PATTERN, name):
        raise RequestError(f"name: {name!r} must be lower case letters, digits and dashes, beginning with a letter")
    if keyword.iskeyword(module) or module in sys.stdlib_module_names or module in ("chatserve", "decoders"):
        raise RequestError(f"name: a module cannot be called {module!r}; choose another name")
    folder = parent / name
    if folder.exists():
        raise RequestError(f"name: {folder} exists already")
    title = "".join(part.capitalize() for part in name.split("-"))
    contents = {
        "pyproject.toml": _PYPROJECT,
        "README.md": _README,
        f"{module}.py": _MODULE,
        f"tests/test_{module}.py": _TEST,
    }
    for file, template in contents.items():
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(template.format(name=name, module=module, title=title), encoding="utf-8")
    return [folder / file for file in contents]
