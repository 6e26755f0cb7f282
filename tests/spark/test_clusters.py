"""What a master means, how many tasks it runs, what is refused on a cluster, and how the driver serves. No Spark."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from recovery import (
    ConfigurationError,
    DiscardSink,
    FileSink,
    IcebergSink,
    KafkaSink,
    OwnerRefusedError,
    RecoveryConfig,
    RecoveryError,
    UnsupportedPlanError,
)
from recovery.owner.process import OwnerProcess
from recovery.spark.clusters import (
    Input,
    Planned,
    TaskServing,
    check_master,
    check_one_host,
    check_plan,
    is_cluster,
    task_limit,
)
from recovery.storage.reach import reach
from tests.stores import KEY, STEP, Driver, OwnedDirectory
from tests.wire.certificates import make_certificates

CLUSTER = "spark://10.0.0.5:7077"
LOOPBACK = {"spark.driver.host": "127.0.0.1"}


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
    with pytest.raises(
        ConfigurationError, match=r"native_state does not run on master .*\n.*\n.*scratch_directory=.*local\[\*\]"
    ):
        check_one_host(master, "native_state")


@pytest.mark.parametrize(
    "master", ["mesos://127.0.0.1:5050", "spark://evil/localhost:7077", "locally", "local[2] or so", "", "yarn\nlocal",
               "yarn-cluster", "spark://a b"],
)  # fmt: skip
def test_invalid_masters(master):
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


KUBERNETES = "k8s://https://10.0.0.5:6443"
POD_IP = "spark.kubernetes.executor.useDriverPodIP"
BIND = {"spark.driver.bindAddress": "0.0.0.0"}


@pytest.mark.parametrize(
    ("master", "settings", "setting"),
    [
        (CLUSTER, {"spark.driver.host": "0.0.0.0"}, "spark.driver.host"),
        ("yarn", {"spark.driver.host": "[::]"}, "spark.driver.host"),
        # As Spark 4.3 leaves the settings of a session.
        (KUBERNETES, {"spark.driver.host": "0.0.0.0", **BIND}, "spark.driver.host"),
        (KUBERNETES, {"spark.driver.host": "words-0.words", **BIND, POD_IP: "true"}, "spark.driver.bindAddress"),
        (KUBERNETES, {**BIND, POD_IP: " True "}, "spark.driver.bindAddress"),
        (CLUSTER, {"spark.driver.host": "driver", **BIND}, None),
        (CLUSTER, {"spark.driver.host": "driver", **BIND, POD_IP: "true"}, None),
        (KUBERNETES, {"spark.driver.host": "words-0.words", **BIND}, None),
        (KUBERNETES, {"spark.driver.host": "words-0.words", **BIND, POD_IP: "false"}, None),
        (KUBERNETES, {"spark.driver.bindAddress": "10.0.0.7", POD_IP: "true"}, None),
        ("local[2]", {"spark.driver.host": "0.0.0.0", **BIND}, None),
    ],
)  # fmt: skip
def test_executors_are_never_sent_to_an_address_to_listen_at(master, settings, setting):
    """They would connect to their own host, and end. setting: the one that is refused."""
    if setting is None:
        check_master(master, settings)
        return
    with pytest.raises(ConfigurationError, match=rf"(?s){setting} is .*What to do: Set spark\.driver\.host"):
        check_master(master, settings)


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


REFUSED = [
    (Planned(FileSink("out")), r"FileSink\('[^']*out'\)", ConfigurationError, "s3a://"),
    (
        Planned(FileSink("file:///mnt/share/out"), [Input("appended", {"path": "/logs"})]),
        "/logs",
        ConfigurationError,
        "mount",
    ),
    (Planned(None, keeps_native_state=True, checkpoint="/db/scratch"), "/db/scratch", UnsupportedPlanError, "stateful"),
    (Planned(None, [Input("appended", {"path": "/logs"})]), "/logs", ConfigurationError, "sharedFiles"),
    (
        Planned(None, [Input("appended", {"path": "/logs", "sharedfiles": "false"})]),
        "/logs",
        ConfigurationError,
        "Kafka",
    ),
]
if find_spec("confluent_kafka") is not None:
    REFUSED.append(
        (
            Planned(KafkaSink("t", servers="h:1", staging="staged")),
            r"KafkaSink\('t', .*staged'\) stages its rows in a directory of the driver's host",
            ConfigurationError,
            "staging='s3a://bucket/staged'",
        )
    )


@pytest.mark.parametrize(("planned", "found", "kind", "remedy"), REFUSED)
def test_what_would_write_or_read_the_disk_of_one_host(planned, found, kind, remedy):
    """Each is refused on a cluster, with the way out, and runs on one host."""
    with pytest.raises(kind, match=rf"(?s){found}.*{CLUSTER}.*{remedy}"):
        check_plan(CLUSTER, planned)
    check_plan("local[2]", planned)


def test_a_warehouse_on_the_disk_of_one_host(monkeypatch):
    """Of an Iceberg catalog, by the sink's properties or by the catalog's configuration."""
    pytest.importorskip("pyiceberg")
    monkeypatch.setenv("PYICEBERG_CATALOG__DEFAULT__WAREHOUSE", "/data")
    with pytest.raises(ConfigurationError, match="has its warehouse, /data"):
        check_plan(CLUSTER, Planned(IcebergSink("db.words")))
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
    ("at", "settings", "bind", "port", "expected"),
    [
        (None, {"spark.driver.host": "h"}, "h", 0, "h:9"),
        (None, {"spark.driver.host": "h", "spark.driver.bindAddress": "0.0.0.0"}, "0.0.0.0", 0, "h:9"),
        (":7400", {"spark.driver.host": "h"}, "h", 7400, "h:9"),
        ("10.0.0.9:7400", {"spark.driver.host": "h"}, "10.0.0.9", 7400, "10.0.0.9:9"),
        ("0.0.0.0:7400", {"spark.driver.host": "h"}, "0.0.0.0", 7400, "h:9"),
        ("[::]:7400", {"spark.driver.host": "[fd00::1]"}, "::", 7400, "fd00::1:9"),
    ],
)  # fmt: skip
def test_where_tasks_reach_the_driver(at, settings, bind, port, expected):
    """At the driver's name of Spark, or where the settings say; never at an address that stands for all."""

    class Owner:
        def __init__(self, **given) -> None:
            self.given = given

        def address(self, host: str, deadline_s: float, tls_ca_pem: str | None) -> str:
            assert tls_ca_pem is None
            return f"{host}:9 {deadline_s:g}"

    owner, address = TaskServing(at, 30).start(settings, Owner)
    assert owner.given == {"bind": bind, "port": port, "tls": None}
    again, _ = TaskServing(at, 30).at_a_free_port().start(settings, Owner)
    assert again.given == {"bind": bind, "port": 0, "tls": None}
    assert address == f"{expected} 30"


@pytest.mark.parametrize(("at", "host", "warns"), [
    (None, "127.0.1.1", True), ("127.0.0.1:7400", "10.0.0.9", True), (None, "10.0.0.9", False),
    ("0.0.0.0:7400", "10.0.0.9", False),
])  # fmt: skip
def test_an_address_that_no_executor_reaches_is_a_warning(at, host, warns, caplog):
    class Owner:
        def __init__(self, **_: object) -> None:
            """Listens nowhere."""

        def address(self, host: str, **_: object) -> str:
            return host

    TaskServing(at, 30).start({"spark.driver.host": host}, Owner)
    assert ("executors of other hosts cannot reach this run" in caplog.text) is warns


class TestTls:
    """With a certificate; the tests make all of them."""

    @pytest.fixture
    def files(self, tmp_path):
        return make_certificates(tmp_path)

    def test_a_task_reads_over_tls_and_no_key_leaves_this_host(self, files, make_store):
        """Also where the certificates are in one file with the key: neither the address nor a process shows it."""
        certificate, key, authority = files
        for file in (certificate, authority):
            file.write_text(key.read_text() + file.read_text())
        secret = key.read_text().splitlines()[1]
        for ca in (authority, None):
            config = RecoveryConfig(tls_cert=certificate, tls_key=certificate, tls_ca=ca)
            with Driver(OwnedDirectory(make_store(2))) as run:
                make = partial(OwnerProcess, run.store.address(run.lease), run.store.scratch, KEY, run.lease, 2)
                owner, address = TaskServing.of(config).start(LOOPBACK, make)
                try:
                    assert reach(address, task_key=KEY)[0].read(STEP, 0, {0: ("a",)}) == {0: [None]}
                    shown = [Path(f"/proc/{owner.pid}/{name}").read_text() for name in ("cmdline", "environ")]
                finally:
                    owner.stop()
            assert "BEGIN CERTIFICATE" in address
            for text in (address, *shown):
                assert secret not in text
                assert "PRIVATE" not in text

    @pytest.mark.parametrize("host", ["10.0.0.5", "driver.example"])
    def test_a_certificate_of_another_name_is_refused_before_anything_starts(self, files, host):
        """The error says what tasks would say, with the name that they use."""
        serving = TaskServing(None, 30, *files)
        with pytest.raises(OwnerRefusedError, match=rf"at {host}, .*not valid for '{host}'(?s:.*)--serve") as raised:
            serving.start({"spark.driver.host": host}, pytest.fail)
        assert raised.value.path == str(files[0])

    def test_a_certificate_of_another_authority_is_refused(self, files, tmp_path):
        """Tasks get what it is checked with, so this process can check it first."""
        (tmp_path / "other").mkdir()
        other = make_certificates(tmp_path / "other")[2]
        with pytest.raises(OwnerRefusedError, match="would not accept the certificate: certificate signature"):
            TaskServing(None, 30, *files[:2], other).check(LOOPBACK)

    def test_a_key_of_another_certificate(self, files, tmp_path):
        (tmp_path / "other").mkdir()
        other = make_certificates(tmp_path / "other")[1]
        with pytest.raises(ConfigurationError, match="the certificate and its key cannot be used"):
            TaskServing(None, 30, files[0], other).check(LOOPBACK)

    @pytest.mark.parametrize("given", [("tls_cert",), ("tls_key",), ("tls_ca",), ("tls_key", "tls_ca")])
    def test_half_of_the_settings(self, given):
        """Never taken for none."""
        with pytest.raises(ConfigurationError, match=rf"{given[0]}.* without tls_(cert|key)"):
            RecoveryConfig("db", **dict.fromkeys(given, "a.pem"))

    def test_settings_are_files_of_this_machine(self, monkeypatch, tmp_path):
        """The flow may change the working directory."""
        config = RecoveryConfig("db", tls_cert="a.pem", tls_key="b.pem")
        monkeypatch.chdir(tmp_path)
        assert TaskServing.of(config).tls_cert == config.path.parent / "a.pem"
        with pytest.raises(ConfigurationError, match="a file of this machine"):
            RecoveryConfig("db", tls_cert="s3://bucket/a.pem", tls_key="b.pem")
