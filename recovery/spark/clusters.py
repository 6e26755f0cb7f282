"""What a Spark master means: one host, or a cluster whose hosts share no files; and where tasks reach the driver's
files.

On a cluster tasks reach the recovery partitions over the network. A start refuses everything else that tasks would
write or read as files of the driver's host; `REFUSALS` lists it.
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from recovery.base.addresses import host_and_port, looks_like_address
from recovery.base.credentials.certificates import read_certificates, shake_hands
from recovery.base.credentials.server_certificate import CertificateFiles
from recovery.config import RecoveryConfig
from recovery.errors import ConfigurationError, OwnerRefusedError, RecoveryError, UnsupportedPlanError
from recovery.owner.process import OwnerProcess
from recovery.owner.serving import ShownCertificate
from recovery.owner.watch.loopback import is_loopback, loopback_warning
from recovery.sinks import DeltaSink, FileSink, IcebergSink, KafkaSink
from recovery.wire.address import DEADLINE_S

_log = logging.getLogger("recovery")
_ONE_PROCESS = re.compile(r"local(\[[^\]]*\])?")
_ONE_HOST = re.compile(r"local(\[[^\]]*\])?|local-cluster\[.*\]|spark://(localhost|127\.[\d.]+)(:\d+)?")
_CLUSTER = re.compile(r"spark://[\w.:,\[\]-]+|yarn|k8s://[^\s]+")
DEPLOY_MODE = "spark.submit.deployMode"
PARALLELISM = "spark.default.parallelism"
INSTANCES, CORES = "spark.executor.instances", "spark.executor.cores"
ANY = ("0.0.0.0", "::")
"""Addresses to listen at that no task can reach."""
DRIVER, BIND = "spark.driver.host", "spark.driver.bindAddress"
BY_BIND_ADDRESS = "spark.kubernetes.executor.useDriverPodIP"
"""On Kubernetes: whether executors connect to the address that the driver listens at, instead of its host's name. That
is the default of Spark 4.3."""


def is_one_process(master: str) -> bool:
    """Whether tasks run in the driver's own JVM. Tasks of `local-cluster[…]` run in other JVMs, on the same host."""
    return _ONE_PROCESS.fullmatch(master) is not None


def is_cluster(master: str) -> bool:
    """Whether executors of this master may run on other hosts, which have disks of their own."""
    return _ONE_HOST.fullmatch(master) is None


def check_master(master: str, settings: Mapping[str, str] | None = None) -> None:
    """Raise ConfigurationError for a master that runs no flows. settings: of the session, or those for it."""
    if is_cluster(master) and not _CLUSTER.fullmatch(master):
        raise ConfigurationError(
            f"master {master!r} is not supported",
            cause="A name that is misspelt, or a kind of cluster that Spark no longer runs on.",
            remedy="Use local[*], spark://HOST:PORT, yarn or k8s://https://HOST:PORT.",
        )
    if is_cluster(master) and (settings or {}).get(DEPLOY_MODE, "client").lower() == "cluster":
        raise ConfigurationError(
            f"{DEPLOY_MODE}=cluster is not supported",
            cause="The cluster then chooses a host for the driver, and that host does not have the recovery directory.",
            remedy="Leave it out, and run the command on the host with the directory: --deploy-mode client. On "
            "Kubernetes that is a pod with the volume.",
        )
    if is_cluster(master):
        _check_driver(master, settings or {})


def is_kubernetes(master: str) -> bool:
    """Whether Spark makes the pods of executors itself."""
    return master.startswith("k8s://")


def _check_driver(master: str, settings: Mapping[str, str]) -> None:
    """Raise ConfigurationError if executors would connect to an address that none of them can reach."""
    by_bind_address = is_kubernetes(master) and settings.get(BY_BIND_ADDRESS, "").strip().lower() == "true"
    setting = BIND if by_bind_address else DRIVER
    address = settings.get(setting, "").strip()
    if address.strip("[]") not in ANY:
        return
    way_out = f"Set {DRIVER} to a name or an address of this host that executors reach, and {BIND} to {address}."
    if is_kubernetes(master):
        way_out = f"{way_out[:-1]}, and {BY_BIND_ADDRESS} to false: Spark 4.3 uses {BIND} for both without that."
    raise ConfigurationError(
        f"{setting} is {address}, and executors of {master} would connect to it",
        cause="That is an address to listen at. An executor that connects to it reaches its own host.",
        remedy=way_out,
    )


def check_one_host(master: str, what: str) -> None:
    """Raise ConfigurationError if a session's executors may run on hosts without this host's files. what: the function
    that needs them, and takes a `scratch_directory`."""
    if is_cluster(master):
        raise ConfigurationError(
            f"{what} does not run on master {master}",
            cause="Executors would read files of this host, and may run on hosts that do not have these files.",
            remedy=f"Name an address that all hosts reach: {what}(…, scratch_directory='s3a://bucket/scratch'), or "
            "'file:///mnt/share/scratch' for a mount of all hosts; or use a session of one host: --master 'local[*]'.",
        )


def task_limit(master: str, settings: Mapping[str, str], parallelism: int) -> int | None:
    """The number of tasks that can run at the same time; None if it is not known yet. settings: of the session.

    parallelism: Spark's own number, which on a cluster counts the executors that have come so far."""
    if not is_cluster(master) or PARALLELISM in settings:
        return max(1, parallelism)
    given = [settings.get(INSTANCES, ""), settings.get(CORES, "")]
    if not all(text.isdecimal() and int(text) for text in given):
        return None
    return int(given[0]) * int(given[1])


@dataclass(frozen=True, slots=True)
class TaskServing:
    """Where and how a process beside the driver serves the tasks of a cluster.

    at: "HOST:PORT" or ":PORT"; None: at spark.driver.host and a free port. deadline_s: how long a task tries to reach
    it. tls_cert, tls_key: PEM files of the certificate that the process shows; None: no TLS. tls_ca: a PEM file of
    those that tasks check it with; None: with `tls_cert`.
    """

    at: str | None = None
    deadline_s: float = DEADLINE_S
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None

    @classmethod
    def of(cls, config: RecoveryConfig) -> TaskServing:
        """Return these settings of a run."""
        files = (None if each is None else Path(each) for each in (config.tls_cert, config.tls_key, config.tls_ca))
        return cls(config.serve_at, config.owner_deadline_s, *files)

    def at_a_free_port(self) -> TaskServing:
        """Return the settings for a further process on this host, at a free port."""
        return replace(self, at=None if self.at is None else f"{host_and_port(self.at)[0]}:0")

    def start(self, settings: Mapping[str, str], make: Callable[..., OwnerProcess]) -> tuple[OwnerProcess, str]:
        """Start the process; return it with its address for tasks. settings: of the session. make: makes the process
        that listens at the given address, like OwnerProcess. Raises like `check`, and ConfigurationError if nothing can
        listen there."""
        trusted = self.check(settings)
        bind, host, port = self._place(settings)
        warning = loopback_warning(bind) or (f"{bind} is this host alone" if is_loopback(bind) else None)
        if warning is not None:
            _log.warning("executors of other hosts cannot reach this run at %s: %s: --serve HOST:PORT", host, warning)
        files = self._files
        tls = None if files is None else ShownCertificate(str(files.certificate), str(files.key), trusted, host)
        owner = make(bind=bind, port=port, tls=tls)
        return owner, owner.address(host, deadline_s=self.deadline_s, tls_ca_pem=trusted)

    def check(self, settings: Mapping[str, str]) -> str | None:
        """Check the certificate as a task will; return the certificates that it is checked with. Raises
        ConfigurationError for a PEM file that cannot be used, and OwnerRefusedError if tasks would not accept the
        certificate."""
        files = self._files
        if files is None:
            return None
        _, host, _ = self._place(settings)
        files.warn_if_shared()
        shown = files.read().context
        trusted = read_certificates(
            self.tls_ca or files.certificate, "--tls-cert" if self.tls_ca is None else "--tls-ca"
        )
        try:
            shake_hands(shown, trusted, host)
        except ssl.SSLError as error:
            raise OwnerRefusedError(
                f"tasks reach the partitions at {host}, and would not accept the certificate: "
                f"{getattr(error, 'verify_message', None) or error.reason or error}",
                path=self.tls_cert,
                cause="The certificate has expired, does not name this host, or was signed by another authority.",
                remedy=f"Give a certificate for {host} (--tls-cert, --tls-key), and the authority that signed it "
                "(--tls-ca); or another name of this host, which executors can resolve: --serve HOST:PORT.",
            ) from None
        return trusted

    @property
    def _files(self) -> CertificateFiles | None:
        """The certificate with its key: a configuration has both, or none."""
        if self.tls_cert is None or self.tls_key is None:
            return None
        return CertificateFiles(self.tls_cert, self.tls_key)

    def _place(self, settings: Mapping[str, str]) -> tuple[str, str, int]:
        """Return the address to listen at, the host's name for tasks, and the port."""
        driver = settings.get(DRIVER, "localhost")
        given, port = host_and_port(self.at or ":0")
        bind = (given or settings.get(BIND, driver)).strip("[]")
        return bind, (driver if bind in ANY else given or driver).strip("[]"), port


class Input(NamedTuple):
    """A source that a plan reads: its format, and its options by their names in lower case."""

    format: str
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Planned:
    """What is about to start.

    keeps_native_state: whether Spark's own operators keep state. checkpoint: where they would, a path or a URI.
    """

    sink: object
    inputs: Sequence[Input] = ()
    keeps_native_state: bool = False
    checkpoint: str = ""


class ClusterRefusal(NamedTuple):
    """Something that does not run on a cluster. found: returns a text about it if a plan has it, otherwise None."""

    found: Callable[[Planned], str | None]
    cause: str
    remedy: str
    kind: type[RecoveryError] = ConfigurationError


def check_plan(master: str, planned: Planned) -> None:
    """Raise the error of the first refusal that a plan meets on this master."""
    if is_cluster(master):
        for refusal in REFUSALS:
            found = refusal.found(planned)
            if found is not None:
                raise refusal.kind(f"{found}, on master {master}", cause=refusal.cause, remedy=refusal.remedy)


def _file_sink(planned: Planned) -> str | None:
    sink = planned.sink
    if not isinstance(sink, FileSink) or sink.shared:
        return None
    return f"FileSink({str(sink.path)!r}) names a directory of the driver's host"


def _kafka_sink(planned: Planned) -> str | None:
    sink = planned.sink
    if not isinstance(sink, KafkaSink) or sink.shared:
        return None
    return f"{sink!r} stages its rows in a directory of the driver's host"


def _table_sink(planned: Planned) -> str | None:
    sink = planned.sink
    if isinstance(sink, DeltaSink) and not looks_like_address(sink.uri):
        return f"DeltaSink({sink.uri!r}) names a directory of the driver's host"
    if isinstance(sink, IcebergSink):
        if sink.warehouse and not looks_like_address(sink.warehouse):
            return f"{sink!r} has its warehouse, {sink.warehouse}, in a directory of the driver's host"
        place = sink.place()
        if place and not looks_like_address(place):
            return f"{sink!r} has its table in {place}, a directory of the driver's host"
    return None


def _native_state(planned: Planned) -> str | None:
    if not planned.keeps_native_state or looks_like_address(planned.checkpoint):
        return None
    return f"Spark's own operators would keep their state in {planned.checkpoint}, a directory of the driver's host"


def _appended(planned: Planned) -> str | None:
    for each in planned.inputs:
        shared = each.options.get("sharedfiles", "false").strip().lower() == "true"
        if each.format == "appended" and not shared:
            return f"the source 'appended' reads {each.options.get('path', '')!r}, files of the driver's host"
    return None


REFUSALS = (
    ClusterRefusal(
        _file_sink,
        "Tasks write the files, and every executor would write them to a disk of its own.",
        "Give it a place that all hosts reach: FileSink('s3a://bucket/out'), or 'file:///mnt/share/out' for a mount of "
        "all hosts; or run on one host: --master 'local[*]'.",
    ),
    ClusterRefusal(
        _kafka_sink,
        "Tasks stage the rows as files, and every executor would write them to a disk of its own.",
        "Give it a place that all hosts reach: KafkaSink(…, staging='s3a://bucket/staged'), or "
        "'file:///mnt/share/staged' for a mount of all hosts; or run on one host: --master 'local[*]'.",
    ),
    ClusterRefusal(
        _table_sink,
        "Tasks write the table's files, and every executor would write them to a disk of its own.",
        "Give it an address that all hosts reach, such as s3://bucket/table, or file:///mnt/table for a mount that all "
        "hosts have; or run on one host: --master 'local[*]'.",
    ),
    ClusterRefusal(
        _native_state,
        "Executors write that state, each to a disk of its own, and it would be lost.",
        "Give it a place that all hosts reach: --scratch s3a://bucket/scratch, or file:///mnt/share/scratch for a "
        "mount of all hosts; or keep the state in a step: recovery.stateful, stateful_arrow or aggregate.",
        UnsupportedPlanError,
    ),
    ClusterRefusal(
        _appended,
        "Executors read the files that the driver plans, and have disks of their own.",
        'Put the files on a mount that all hosts have under the same path, and say so: .option("sharedFiles", "true"); '
        "or send the lines through Kafka.",
    ),
)
"""All that is refused on a cluster."""
