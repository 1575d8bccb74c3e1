"""The kernels without warp-wide instructions run in numba's own simulator, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_kernels_run_in_the_simulator() -> None:
    command = [sys.executable, "-m", "tests.cuda_kernels.simulate"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NUMBA_ENABLE_CUDASIM": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
