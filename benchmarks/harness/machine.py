"""The machine and the code that were measured, described without names of hosts or places."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.harness.processes import ROOT
from recovery.base.version import installed_version


def describe() -> dict[str, str]:
    """Processor, memory, system, the commit of this repository, the date."""
    memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{memory_gib:.0f} GiB",
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def versions(*packages: str) -> dict[str, str]:
    """The versions of Python, of this package, of apsw and of further packages, in the process that measures."""
    named = {package: version(package) for package in ("apsw", *packages)}
    return {"python": platform.python_version(), "recovery": installed_version(), **named}


def commit() -> str:
    """The commit that is checked out, marked when the package differs from it."""
    try:
        head = _git("rev-parse", "--short=10", "HEAD").strip()
        changed = _git("status", "--porcelain", "--", "recovery", "benchmarks")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    # The results themselves do not count as a change.
    results = ("benchmarks/RESULTS.md", "benchmarks/pictures/")
    others = [line for line in changed.splitlines() if not line[3:].startswith(results)]
    return f"{head} with changes" if others else head


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
