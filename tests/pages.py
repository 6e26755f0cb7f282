"""Type the blocks of a page, as a reader does: `python tests/pages.py PAGE` in the directory where the files shall lie.

A block with a title is saved as a file of that name, and a block of the shell is run; all others are only shown to
readers. Needs nothing but Python, so that it runs beside an installed package.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

BLOCK = re.compile(r"^```(?:python title=(?P<name>\S+)|sh)\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)
LIMIT_S = 600
"""How long the commands of one block may take."""


def type_blocks(page: Path, directory: Path, environment: Mapping[str, str] | None = None) -> Iterator[tuple[str, str]]:
    """Yield the commands of each block of the shell, and what they have printed on both outputs. Raises AssertionError
    if a block fails."""
    for block in BLOCK.finditer(page.read_text("utf-8")):
        if block["name"]:
            (directory / block["name"]).write_text(block["text"], "utf-8")
            continue
        done = subprocess.run(
            ["bash", "-e", "-c", block["text"]], cwd=directory, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{block['text']}\n{done.stdout}\nended with {done.returncode}"
        yield block["text"], done.stdout


if __name__ == "__main__":
    for commands, printed in type_blocks(Path(sys.argv[1]), Path()):
        print("".join(f"$ {line}\n" for line in commands.splitlines()), printed, sep="", flush=True)
