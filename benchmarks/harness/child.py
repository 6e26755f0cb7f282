"""The child's side: `python -m benchmarks.harness.child MODULE:FUNCTION JSON` prints the function's answer as a line.

Only the answer goes to standard output; whatever else is printed there goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module


def main() -> None:
    """Call the function."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module, function = sys.argv[1].split(":")
    answer = getattr(import_module(module), function)(json.loads(sys.argv[2]))
    print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
