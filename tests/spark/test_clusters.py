"""What a master means, how many tasks it runs, and what is refused on a cluster. No Spark."""

from __future__ import annotations

import pytest

from recovery import (
    AllKeysSink,
    ConfigurationError,
    DiscardSink,
    FileSink,
    IcebergSink,
    RecoveryError,
    UnsupportedPlanError,
)
from recovery.spark.clusters import (
    Input,
    Planned,
    Serving,
    check_master,
    check_one_host,
    check_plan,
    is_cluster,
    task_limit,
)

CLUSTER = "spark://10.0.0.5:7077"


@pytest.mark.parametrize(
    "master",
    ["local", "local[2]", "local[*]", "local[2,4]", "local[*,4]", "local-cluster[2,1,1024]", "spark://127.0.0.1:7077",
     "spark://127.0.0.2", "spark://localhost:7077"],
)  # fmt: skip
def test_masters_of_this_host(master):
    """Their executors see this host's files."""
    check_master(master)
    check_one_host(master, "native_state")
    assert not is_cluster(master)


@pytest.mark.parametrize(
    "master",
    ["yarn", "k8s://x", "k8s://https://127.0.0.1:6443", "spark://10.0.0.5:7077", "spark://[::1]:7077",
     "spark://localhost.evil:7077", "spark://127.0.0.1.evil:7077", "spark://127.0.0.1:7077,10.0.0.5:7077",
     "spark://0.0.0.0:7077"],
)  # fmt: skip
def test_masters_of_other_hosts(master):
    """Their executors may have disks of their own, so nothing may assume that they see this host's."""
    check_master(master)
    assert is_cluster(master)
    with pytest.raises(ConfigurationError, match=r"native_state does not run on master .*\n.*\n.*local\[\*\]"):
        check_one_host(master, "native_state")


@pytest.mark.parametrize(
    "master", ["mesos://127.0.0.1:5050", "spark://evil/localhost:7077", "locally", "local[2] or so", "", "yarn\nlocal",
               "yarn-cluster", "spark://a b"],
)  # fmt: skip
def test_masters_that_are_none(master):
    """Refused before Spark starts, with the forms that there are."""
    with pytest.raises(ConfigurationError, match=r"is not supported(?s:.*)spark://HOST:PORT"):
        check_master(master)


def test_a_driver_that_the_cluster_places_is_refused():
    """It would not have the recovery directory; what is said of one host does not matter."""
    for mode in ("cluster", "CLUSTER"):
        with pytest.raises(ConfigurationError, match=r"deployMode=cluster(?s:.*)--deploy-mode client"):
            check_master("yarn", {"spark.submit.deployMode": mode})
    check_master("yarn", {"spark.submit.deployMode": "client"})
    check_master("local[*]", {"spark.submit.deployMode": "cluster"})


@pytest.mark.parametrize(
    ("master", "settings", "limit"),
    [
        ("local[4]", {}, 2),
        ("local[4]", {"spark.executor.instances": "9", "spark.executor.cores": "9"}, 2),
        (CLUSTER, {}, None),
        (CLUSTER, {"spark.executor.instances": "3"}, None),
        (CLUSTER, {"spark.executor.instances": "0", "spark.executor.cores": "2"}, None),
        (CLUSTER, {"spark.executor.instances": "3", "spark.executor.cores": "4"}, 12),
        (CLUSTER, {"spark.default.parallelism": "2", "spark.executor.instances": "3", "spark.executor.cores": "4"}, 2),
    ],
)  # fmt: skip
def test_how_many_tasks_run_at_the_same_time(master, settings, limit):
    """On a cluster Spark's own number, here 2, only counts the executors that have come so far."""
    assert task_limit(master, settings, 2) == limit


class Step:
    """What AllKeysSink wants of a step."""

    def all_keys(self) -> None: ...


REFUSED = [
    (Planned(FileSink("out")), r"FileSink\('[^']*out'\)", ConfigurationError, "s3a://"),
    (
        Planned(FileSink("file:///mnt/share/out"), [Input("appended", {"path": "/logs"})]),
        "/logs",
        ConfigurationError,
        "mount",
    ),
    (Planned(AllKeysSink(Step(), "db", print)), "AllKeysSink", ConfigurationError, "UpsertSink"),
    (Planned(None, keeps_native_state=True, checkpoint="/db/scratch"), "/db/scratch", UnsupportedPlanError, "stateful"),
    (Planned(None, [Input("appended", {"path": "/logs"})]), "/logs", ConfigurationError, "sharedFiles"),
    (
        Planned(None, [Input("appended", {"path": "/logs", "sharedfiles": "false"})]),
        "/logs",
        ConfigurationError,
        "Kafka",
    ),
]


@pytest.mark.parametrize(("planned", "found", "kind", "remedy"), REFUSED)
def test_what_would_write_or_read_the_disk_of_one_host(planned, found, kind, remedy):
    """Each is refused on a cluster, with the way out, and runs on one host."""
    with pytest.raises(kind, match=rf"(?s){found}.*{CLUSTER}.*{remedy}"):
        check_plan(CLUSTER, planned)
    check_plan("local[2]", planned)


def test_a_warehouse_on_the_disk_of_one_host():
    """Of an Iceberg catalog, as far as the sink knows it."""
    pytest.importorskip("pyiceberg")
    with pytest.raises(ConfigurationError, match=r"IcebergSink\('db.words'\) has its warehouse, /data, in a directory"):
        check_plan(CLUSTER, Planned(IcebergSink("db.words", properties={"warehouse": "/data"})))
    for address in ("s3://bucket/warehouse", "file:///mnt/share"):
        check_plan(CLUSTER, Planned(IcebergSink("db.words", properties={"warehouse": address})))


def test_what_runs_on_a_cluster():
    """Sinks of the driver, shared files, other sources."""
    shared = Input("appended", {"path": "/logs", "sharedfiles": " True "})
    check_plan(CLUSTER, Planned(None, keeps_native_state=True, checkpoint="s3a://bucket/scratch"))
    check_plan(CLUSTER, Planned(DiscardSink(), [shared, Input("kafka", {}), Input("recovery", {"path": "db"})]))


def test_every_refusal_says_what_to_do():
    """No error of the table without cause and remedy."""
    for planned, *_ in REFUSED:
        with pytest.raises(RecoveryError) as raised:
            check_plan(CLUSTER, planned)
        assert raised.value.cause
        assert raised.value.remedy


@pytest.mark.parametrize(
    ("at", "settings", "bind", "port", "told"),
    [
        (None, {"spark.driver.host": "h"}, "h", 0, "h:9"),
        (None, {"spark.driver.host": "h", "spark.driver.bindAddress": "0.0.0.0"}, "0.0.0.0", 0, "h:9"),
        (":7400", {"spark.driver.host": "h"}, "h", 7400, "h:9"),
        ("10.0.0.9:7400", {"spark.driver.host": "h"}, "10.0.0.9", 7400, "10.0.0.9:9"),
        ("0.0.0.0:7400", {"spark.driver.host": "h"}, "0.0.0.0", 7400, "h:9"),
        ("[::]:7400", {"spark.driver.host": "[fd00::1]"}, "::", 7400, "fd00::1:9"),
    ],
)  # fmt: skip
def test_where_tasks_reach_the_driver(at, settings, bind, port, told):
    """At the driver's name of Spark, or where the settings say; never at an address that stands for all."""

    class Owner:
        def __init__(self, **given) -> None:
            self.given = given

        def address(self, host: str, deadline_s: float) -> str:
            return f"{host}:9 {deadline_s:g}"

    owner, address = Serving(at, 30).start(settings, Owner)
    assert owner.given == {"bind": bind, "port": port}
    again, _ = Serving(at, 30).at_a_free_port().start(settings, Owner)
    assert again.given == {"bind": bind, "port": 0}
    assert address == f"{told} 30"
