"""KafkaSink with several brokers whose nodes are killed, and with a broker whose disk is full."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from recovery.errors import RecoveryError, SinkFailedError, SinkRefusedError
from tests.kafka import broker, needs_jars
from tests.sinks.support import Store
from tests.sinks.test_targets import mounted
from tests.sinks.topics import Run, TopicTarget, record

pytest.importorskip("confluent_kafka", reason="confluent-kafka is not installed (the test extra)")
pytestmark = [needs_jars, pytest.mark.long]
NODES = 3
ROUNDS = int(os.environ.get("RECOVERY_TEST_KAFKA_KILLS", "50")) // 5
LIMIT_S = 240
"""Longer than any limit of the sink in one epoch."""


@pytest.mark.parametrize("compensate", [False, True])
def test_nodes_that_are_killed(tmp_path, compensate):
    """Leaders of partitions and the coordinator of transactions move, between epochs and within a transaction: each
    epoch is produced once, or the run ends with a typed error and the next one produces it."""
    seed = int(os.environ.get("RECOVERY_TEST_SEED", time.time_ns() % 1_000_000))
    print(f"replay with RECOVERY_TEST_SEED={seed}")
    lot = random.Random(seed)
    (tmp_path / "brokers").mkdir()
    with broker(tmp_path / "brokers", NODES) as kafka:
        target = TopicTarget(kafka, tmp_path / "staged", kafka.create("topic", 3, cleanup_policy="compact"))
        target.options = {"records_per_transaction": 5, "compensate": compensate}
        store = Store(past=[])
        run, wanted, errors = started(store, target), {}, []
        for number in range(ROUNDS):
            node = lot.randrange(NODES) + 1
            run.write(*[(f"k{key}", number) for key in range(12)])
            wanted = {f"k{key}": [*wanted.get(f"k{key}", []), number] for key in range(12)}
            send, killed = run.sink._production._transactions.send, []

            def kill(*given, send=send, killed=killed, node=node):
                send(*given)
                if not killed and lot.random() < 0.5:
                    killed.append(node)
                    kafka.kill(node)

            run.sink._production._transactions.send = kill
            began = time.monotonic()
            try:
                run.close()
                run.sink._production._transactions.send = send
            except (SinkFailedError, SinkRefusedError) as error:
                errors.append(error)
                kafka.restart(node)
                run = started(store, target)
            assert time.monotonic() - began < LIMIT_S
            kafka.restart(node)
        assert target.order() == wanted
        if compensate:
            store.loses = True
            started(store, target, resume_epoch=2)
            assert target.latest() == dict.fromkeys(wanted, 0)
        print(f"{ROUNDS} kills, {len(errors)} runs ended by them: {[each.found for each in errors]}")


def started(store: Store, target: TopicTarget, **options: int) -> Run:
    """The next run, started again while brokers that have just come back, or do not know a new topic yet, refuse it."""
    until = time.monotonic() + LIMIT_S
    while True:
        try:
            return Run(store, target.sink(), **options)
        except RecoveryError:
            assert time.monotonic() < until
            time.sleep(1)


def test_a_broker_whose_disk_is_full(tmp_path):
    """The run ends with a typed error within its limits; with room, the next one produces the epoch once."""
    with mounted("size=80m") as place:
        home = place / "broker"
        home.mkdir()
        with broker(home, log_segment_bytes=10_000_000) as kafka:
            target = TopicTarget(kafka, tmp_path / "staged", kafka.create("topic", 1))
            store = Store()
            run = Run(store, target.sink(options={"transaction.timeout.ms": 20_000}))
            run.epoch(("a", 1))
            run.write(*[record(b"a", b"%d" % number + b" " * 100_000) for number in range(2, 102)])
            fill(place)
            began = time.monotonic()
            with pytest.raises((SinkFailedError, SinkRefusedError)) as caught:
                run.close()
            took_s = time.monotonic() - began
            assert took_s < LIMIT_S
            (place / "filler").unlink()
            kafka.restart()
            assert target.order() == {"a": [1]}
            started(store, target).epoch(("a", 102))
            assert target.order() == {"a": list(range(1, 103))}
            print(f"after {took_s:.0f} s: {caught.value}")


def fill(place: Path) -> None:
    """Take all room of a file system but 4 MB."""
    found = os.statvfs(place)
    with (place / "filler").open("wb") as file:
        file.write(bytes(found.f_bavail * found.f_frsize - 4_000_000))
