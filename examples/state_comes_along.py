r"""The state of a `transformWithState` job moves into a step, with its position in the input.

    mkdir clicks
    printf 'ann,/a\nbob,/b\nann,/c\n' > clicks/1.csv
    python examples/state_comes_along.py
    python -m recovery init db/ 2
    python -m recovery checkpoint import job/ db/ --flow visits --into-step visits \
        --map examples/state_comes_along.py:moved --dry-run
    python -m recovery checkpoint import job/ db/ --flow visits --into-step visits \
        --map examples/state_comes_along.py:moved
    printf 'ann,/d\neve,/a\n' > clicks/2.csv
    python -m recovery run examples/state_comes_along.py -r db/

The first command with `examples/` runs the Spark job over the first file and stops it. The flow then reads the second
file alone, and continues to count: ann has three pages. Spark needs the package protobuf for such jobs
(pip install protobuf).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StatefulProcessor

from recovery import ConsoleSink, Flow, GroupState, stateful

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
OUTPUT = "user string, pages long, path string"


def read(spark: SparkSession) -> DataFrame:
    return spark.readStream.schema("user string, page string").csv("clicks/")


# ---- before: a Spark job, whose state is two variables for each user


class Visits(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self.pages = handle.getValueState("pages", "n long")
        self.path = handle.getListState("path", "page string")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803 - Spark calls it so
        (pages,) = self.pages.get() if self.pages.exists() else (0,)
        for frame in rows:
            pages += len(frame)
            for page in frame["page"]:
                self.path.appendValue((page,))
        self.pages.update((pages,))
        path = " ".join(page for (page,) in self.path.get())
        yield pd.DataFrame({"user": [key[0]], "pages": [pages], "path": [path]})

    def close(self) -> None:
        pass


def main() -> None:
    """Run the job over what is there, and stop it."""
    spark = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2).getOrCreate()
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    visits = read(spark).groupBy("user").transformWithStateInPandas(Visits(), OUTPUT, "update", "None")
    query = visits.writeStream.format("console").outputMode("update").option("checkpointLocation", "job/")
    query.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


# ---- after: a flow, whose step has one state for each user


@dataclass
class Visit:
    pages: int = 0
    path: list[str] = field(default_factory=list)


def visits(user: str, rows: list[Any], state: GroupState[Visit]) -> Iterator[tuple[str, int, str]]:
    visit = state.getOption or Visit()
    visit = Visit(visit.pages + len(rows), visit.path + [row.page for row in rows])
    state.update(visit)
    yield user, visit.pages, " ".join(visit.path)


def build(spark: SparkSession) -> DataFrame:
    return read(spark).transform(stateful("visits", key="user", update=visits, output=OUTPUT, state=Visit))


flow = Flow("visits", build, sink=ConsoleSink())


# ---- on the way: one state from the job's variables


def moved(user: str, state: dict[str, Any]) -> Visit:
    return Visit(state["pages"].n, [page for (page,) in state["path"]])


if __name__ == "__main__":
    main()
