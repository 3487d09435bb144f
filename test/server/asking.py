"""Questions about SGLang's records, asked in a process of its own because that imports SGLang."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any


def answers_of(script: str, questions: Any) -> dict[str, Any]:
    """The last line that a script prints as JSON, given the questions as JSON on its input."""
    asked = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(questions),
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
    )
    return json.loads(asked.stdout.splitlines()[-1])
