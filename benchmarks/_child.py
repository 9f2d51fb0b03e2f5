"""Measurements in a process of their own: what one starts with, another would inherit."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any


def run_child(script: str, words: Sequence[object], **environment: str) -> Any:
    """What a script prints last, as JSON, when it is run with these arguments."""
    variables = {**os.environ, **environment}
    variables.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    done = subprocess.run(
        [sys.executable, script, *map(str, words)],
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])
