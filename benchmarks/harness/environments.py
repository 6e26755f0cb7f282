"""Each peer in a virtual environment of its own, made once and used again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Peer:
    """Something to compare with: the requirements, pinned, of its environment."""

    name: str
    requirements: tuple[str, ...]

    @property
    def variable(self) -> str:
        """The environment variable that names a Python that has them already."""
        return f"RECOVERY_BENCH_{self.name.upper()}_PYTHON"


SPARK = Peer("spark", ("pyspark==4.3.0",))
SPARK_PANDAS = Peer(
    "spark_pandas", ("pyspark==4.3.0", "pandas==2.3.3", "pyarrow==26.0.1", "protobuf==6.33.5", "setuptools==80.9.0")
)
BYTEWAX = Peer("bytewax", ("bytewax==0.21.1",))
BYTEWAX_ARROW = Peer("bytewax_arrow", ("bytewax==0.21.1", "pyarrow==26.0.1"))


def python_of(peer: Peer, kept: Path) -> Path:
    """The peer's Python, from its variable or from an environment under `kept`, which is made when missing."""
    given = os.environ.get(peer.variable)
    if given:
        return Path(given).absolute()
    target = kept / "-".join((peer.name, *(each.replace("==", "-") for each in peer.requirements)))
    python = target / "bin" / "python"
    complete = target / "complete"
    if not complete.exists():
        shutil.rmtree(target, ignore_errors=True)
        print(f"Making an environment for {' '.join(peer.requirements)} …", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", target], check=True)
        # Isolated: pip takes packages on PYTHONPATH for installed ones, and the contender does not see them.
        subprocess.run([python, "-I", "-m", "pip", "install", "--quiet", *peer.requirements], check=True)
        complete.touch()
    return python.absolute()


def own_python() -> Path:
    """The Python that has `recovery`: this one."""
    return Path(sys.executable).absolute()


def java_environment() -> dict[str, str]:
    """JAVA_HOME as our sessions set it, so that all contenders on Spark run on the same Java."""
    from recovery.spark.jvm.session import prepare_environment

    prepare_environment()
    home = os.environ.get("JAVA_HOME")
    return {"JAVA_HOME": home} if home else {}


def warmed_up(kept: Path) -> dict[str, str]:
    """The environment of a contender on recovery that starts after `recovery warmup`, with an archive under `kept`,
    which is made when missing."""
    from recovery.spark.jvm.cache import CACHE_VARIABLE, archive_path
    from recovery.spark.jvm.java import java_home

    environment = {**java_environment(), CACHE_VARIABLE: str(kept.absolute())}
    archive = archive_path(java_home())
    if archive is None or not (kept / archive.name).is_file():
        print("Warming up …", file=sys.stderr)
        subprocess.run(
            [own_python(), "-m", "recovery", "warmup"], env={**os.environ, **environment}, check=True, stdout=sys.stderr
        )
    return environment
