"""What every test may rely on: no configuration and no network from outside, and repeatable random examples."""

from __future__ import annotations

import os
import signal

import hypothesis
import pytest

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start what runs in the background without it
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # tests run in several processes: who spins keeps another from work
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

# A busy machine may stall any example, so time limits belong to whole tests. CI draws the same examples each time.
hypothesis.settings.register_profile("default", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


@pytest.fixture(scope="session", autouse=True)
def compiled_sampler() -> None:
    """On a fresh machine the sampler's kernels are compiled here, not while a test waits for an answer."""
    from chatserve.engine import sampler
    from chatserve.testing import VOCAB_SIZE

    sampler.warm_up(VOCAB_SIZE)


@pytest.fixture(autouse=True)
def no_outside_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the developer's own CHATSERVE_* variables from the code under test."""
    for name in [name for name in os.environ if name.startswith("CHATSERVE_")]:
        monkeypatch.delenv(name)
