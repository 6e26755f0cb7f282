"""The queries of tests.flows.operators in one process, on one session: `python -m tests.flows.together JSON`, with
{"root": DIRECTORY, "pause_s": SECONDS, "queries": {NAME: {what RecoveryConfig takes}, ...}}.

Each has its input, recovery directory and output below the root, and they start in the order given. Lines tell how far
it is: `jvm PID`, `started NAME`, `batch NAME`, `ended NAME`.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from recovery import RecoveryConfig, start
from recovery.spark.jvm.session import create_session, prepare_environment
from recovery.spark.run.reporting.events import BatchDone
from tests.flows.operators import make, settings
from tests.spark.support import ROOT, set_to

MASTER = "local[2]"
# Eleven queries have more generated code than Spark keeps by default: it would be compiled again in each micro-batch.
ROOMY = {"spark.sql.codegen.cache.maxEntries": "5000"}


def tell(*words: object) -> None:
    # One call for a line: print makes two, and other threads tell too.
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def start_query(spark, root: Path, name: str, pause_s: float, **config):
    """A query's settings are those of the session when it starts; the next one may have others."""
    flow = make(name, str(root / name / "events"), str(root / name / "output"), pause_s)

    def observe(event) -> None:
        if isinstance(event, BatchDone):
            tell("batch", name)

    with set_to(spark, settings(name)):
        query = start(
            flow, RecoveryConfig(root / name / "db", **config), spark=spark, trigger="available-now", observer=observe
        )
    tell("started", name)
    return query


def main(root: str, pause_s: float, queries: dict[str, dict]) -> None:
    """Run them until all have ended; raises what ended one of them."""
    prepare_environment(str(ROOT))
    spark = create_session("together", master=MASTER, conf=ROOMY)
    tell("jvm", spark.sparkContext._gateway.proc.pid)
    running, failed = {}, []

    def wait(name: str) -> None:
        try:
            running[name].await_termination()
        except Exception as error:
            failed.append(name)
            tell(f"{name}: {error!r}")
        tell("ended", name)

    waiting = []
    for name, config in queries.items():
        running[name] = start_query(spark, Path(root), name, pause_s, **config)
        waiting.append(threading.Thread(target=wait, args=(name,), daemon=True))
        waiting[-1].start()
    for thread in waiting:
        thread.join()
    spark.stop()
    if failed:
        sys.exit(f"failed: {failed}")


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
