"""The page about the Python API: its example runs as it stands."""

import re
import subprocess
import sys

import pytest
from forked_starts import environment
from paths import REPOSITORY


@pytest.mark.slow
def test_example_runs(tmp_path):
    (code,) = re.findall(
        "```python\n(.*?)```", (REPOSITORY / "docs" / "python.md").read_text(), re.S
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(tmp_path), text=True,
        capture_output=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "\ndef main(" in done.stdout
