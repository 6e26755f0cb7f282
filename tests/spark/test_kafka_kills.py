"""A flow over three topics, killed at any moment, and gone back: state and output have each record once."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import pytest

from recovery import init_partitions
from recovery.storage.scan import scan
from tests.kafka import CONNECTOR, broker, needs_jars
from tests.spark.support import ROOT, going_back
from tests.spark.test_crashes import finish, recovery_command
from tests.spark.test_kafka import check

KILLS = int(os.environ.get("RECOVERY_TEST_KAFKA_KILLS", "50"))
SEED = int(os.environ.get("RECOVERY_TEST_SEED", time.time_ns() % 1_000_000))
pytestmark = [pytest.mark.long, needs_jars]


class Sender(threading.Thread):
    """Sends random records to the topics until it is stopped; now and then a topic gets one partition more."""

    def __init__(self, kafka, topics) -> None:
        super().__init__(daemon=True)
        self._kafka, self._topics = kafka, topics
        self._stop_it = threading.Event()

    def run(self) -> None:
        generator = random.Random(SEED)
        counts = dict.fromkeys(self._topics, 2)
        while not self._stop_it.wait(generator.uniform(0.01, 0.3)):
            topic = generator.choice(self._topics)
            if generator.random() < 0.01 and counts[topic] < 5:
                counts[topic] += 1
                self._kafka.grow(topic, counts[topic])
            keys = [b"k%d" % generator.randrange(30) for _ in range(generator.randrange(1, 25))]
            self._kafka.send(topic, [(key, b"x") for key in keys])

    def stop(self) -> None:
        self._stop_it.set()
        self.join()


def test_killed_at_any_moment(tmp_path):
    """Killed KILLS times, in the start, in a micro-batch and while it closes epochs; some runs go back first."""
    print(f"seed {SEED}: RECOVERY_TEST_SEED={SEED} replays it")
    generator = random.Random(SEED)
    (tmp_path / "broker").mkdir()
    init_partitions(tmp_path / "db", 3)
    jars = ",".join(map(str, CONNECTOR))
    with broker(tmp_path / "broker") as kafka:
        topics = [kafka.create(f"topic-{name}", 2) for name in "abc"]

        def begin(*options, records_per_batch=50):
            target = (
                f"{ROOT}/tests/flows/kafka_records.py:make({kafka.servers!r}, {','.join(topics)!r}, "
                f"{str(tmp_path / 'out')!r}, 0.05, {records_per_batch})"
            )
            options = ["--jars", jars, "-s", "0.3", "-b", "1h", *options]
            return recovery_command(target, tmp_path / "db", *options)

        sender = Sender(kafka, topics)
        sender.start()
        rewinds = 0
        for number in range(KILLS):
            newest = scan(tmp_path / "db")[0].description.newest_epoch or 0
            back: list[str] = []
            if number % 3 == 2 and newest > 1:
                rewinds += 1
                back = going_back(tmp_path / "db", "records", generator.randrange(newest))
            process = begin("--trigger", "0.1", *back)
            what, awaited = generator.choice([("", 1), ("batch ", 1), ("batch ", 3), ("epoch ", 1), ("epoch ", 3)])
            printed = []
            for line in process.stdout:
                printed.append(line)
                awaited -= line.startswith(what)
                if awaited <= 0 or process.poll() is not None:
                    break
            time.sleep(generator.uniform(0, 0.6) if generator.random() < 0.9 else generator.uniform(0, 4))
            alive = process.poll() is None
            if alive:
                os.killpg(process.pid, signal.SIGKILL)
            printed.append(finish(process))
            assert alive, "".join(printed)
        sender.stop()
        # The slower the machine, the more records have come meanwhile.
        for back_to in (None, 1):
            back = [] if back_to is None else going_back(tmp_path / "db", "records", back_to)
            process = begin(*back, records_per_batch=5000)
            output = finish(process, 600)
            assert process.returncode == 0, output
            check(kafka, tmp_path, *topics)
        print(f"{KILLS} kills, {rewinds} rewinds, {len(kafka.records(*topics))} records")
