"""The settings of a run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recovery.base.addresses import host_and_port, local_path
from recovery.base.intervals import Interval, parse_interval
from recovery.base.wording import counted
from recovery.errors import ConfigurationError
from recovery.places.address import file_system
from recovery.planning.backups import parse_keep
from recovery.planning.health import parse_targets

DEFAULT_MASTER = "local[*,3]"
"""Spark's default master: all cores, and two retries of a task whose Python worker was killed."""


@dataclass(frozen=True, slots=True)
class RecoveryConfig:
    """Where a flow keeps its recovery partitions, and when it writes to them.

    directory: the recovery directory, made by `python -m recovery init DIR N`. A pipeline whose state is in another
        state backend needs none.
    snapshot_interval: wall time after which an epoch is closed at the next micro-batch boundary; 0 closes one
        after every micro-batch.
    backup_interval: wall time for which superseded snapshots are kept, so that copies of the partitions
        taken at different moments still share an epoch, and runs can go back. None: as long as the last run on the
        directory kept them; 0 if there was none.
    discard_history: allow a backup_interval that is shorter than the last run's, and discard what only the longer one
        keeps.
    resume_after: rewind: start from the snapshot after this epoch; 0: from the beginning. None: from the latest.
        Epochs closed since are discarded.
    resume_epoch: the same, named by the epoch that follows the snapshot: resume_epoch=3 is resume_after=2.
    rewind_again: the number of an execution that went back to the same snapshot before: go back once more.
    drop_steps: steps whose state is discarded at the start, because the flow lacks them, declares them in a way that
        does not fit it, or cannot read it.
    rename_steps: steps that have a new name in the flow: {old: new}.
    keep_steps: steps whose key or state type changed in a way that leaves the stored state right as it is. The start
        checks that the step can read it.
    scratch_directory: where the execution keeps what need not survive it (touched state, Spark's checkpoint);
        None: inside the recovery directory. An address that all hosts of a cluster reach, such as s3a://bucket/scratch,
        hdfs://… or file:///mnt/share/scratch: there is Spark's checkpoint if its own operators keep state, and
        everything else inside the recovery directory.
    thresholds: levels of targets that replace the defaults: {"snapshot-duration": "5s/20s", "state-size": "off"}.
    metrics_port: serve metrics for Prometheus at this port during the run; 0: at any free port.
    metrics_host: the address to serve them at.
    serve_at: on a cluster, where tasks reach the partitions: "HOST:PORT" or ":PORT"; None: at spark.driver.host and a
        free port.
    owner_deadline: on a cluster, how long a task tries to reach the partitions before it fails.
    tls_cert, tls_key: on a cluster, PEM files of the certificate that tasks of other hosts see, and its key; None:
        states cross the network without encryption.
    owners: "HOST:PORT" of each owner (`recovery serve`) that has other partitions of the store; the directory then has
        those that are on this host, if any.
    token_file: a file with the owners' token.
    tls_ca: a PEM file of the certificates that tasks check tls_cert with, None: with itself; and that those of the
        owners are checked with, None: connections to them have no TLS.
    no_output: compute and drop the rows instead of passing them to the flow's sink. For forks only: elsewhere the
        output of what is processed would never appear.
    until: stop after the same input that the store from which this one was forked had read: 17 is its epoch 17,
        "batch:41" its micro-batch 41. The input up to there is one micro-batch.
    replicate: where each closed epoch is shipped in the background, as an incremental backup: a directory, or an
        address such as s3://bucket/path. Nothing waits for it. Needs a backup interval, by default ten minutes.
    replicate_sync: an epoch's output appears at the sink when the epoch is shipped, not before.
    replicate_keep: which backups stay at that place: ("24h", "30d/1d"), as for `recovery backup --keep`; none given:
        all.
    takeover: take over the store from the run that has it: promote the directory, a standby; or, for a restored
        directory, take the lease of the place that `replicate` names.
    lose_epochs: continue although the place that `replicate` names, or the sink's target, has epochs of executions that
        the directory does not know, or somebody took rows of closed epochs out of the sink's table. They are lost, and
        the input of the former is processed again as far as it is still there.
    lose_input: names of sources of which the run leaves out what is lost: a path, a topic or a table, as the error
        about lost input prints it. Other sources must be whole.
    wait_limit: how long the run waits for executors, or for a source to say what it has, before it ends with an error;
        None: without limit.
    state_backend: where the run history is kept, a URI; None: as the environment variable RECOVERY_STATE_BACKEND
        says, by default the recovery directory.

    Intervals are seconds as int or float, a timedelta, or text like "10s", "5m", "1h"; they are stored as seconds
    (float). Raises ConfigurationError.
    """

    directory: str | os.PathLike[str] | None = None
    snapshot_interval: Interval = 10
    backup_interval: Interval | None = None
    resume_epoch: int | None = None
    drop_steps: tuple[str, ...] = ()
    rename_steps: Mapping[str, str] = field(default_factory=dict)
    keep_steps: tuple[str, ...] = ()
    scratch_directory: str | os.PathLike[str] | None = None
    state_backend: str | None = None
    thresholds: Mapping[str, Any] = field(default_factory=dict)
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    discard_history: bool = False
    resume_after: int | None = None
    rewind_again: int | None = None
    serve_at: str | None = None
    owner_deadline: Interval = "60s"
    tls_cert: str | os.PathLike[str] | None = None
    tls_key: str | os.PathLike[str] | None = None
    owners: tuple[str, ...] = ()
    token_file: str | os.PathLike[str] | None = None
    tls_ca: str | os.PathLike[str] | None = None
    no_output: bool = False
    until: int | str | None = None
    replicate: str | os.PathLike[str] | None = None
    replicate_sync: bool = False
    replicate_keep: tuple[str, ...] = ()
    takeover: bool = False
    lose_epochs: bool = False
    lose_input: tuple[str, ...] = ()
    wait_limit: Interval | None = None

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        if self.directory is not None and not os.fspath(self.directory):
            raise ConfigurationError(
                "the recovery directory has no name",
                cause="A setting or environment variable is empty.",
                remedy="Name the directory created by: python -m recovery init DIR N",
            )
        for setting, what in (("drop_steps", "step id"), ("keep_steps", "step id"), ("lose_input", "name")):
            given = getattr(self, setting)
            if isinstance(given, str):
                raise ConfigurationError(
                    f"{setting}={given!r} is a text, not a sequence of {what}s",
                    cause=f"A single {what} was given without brackets.",
                    remedy=f"Write {setting}=({given!r},).",
                )
            set_field(self, setting, tuple(given))
        if self.directory is not None:
            if self.directory != self.state_backend:
                local_path(self.directory)
            # The flow may change the working directory while it runs.
            set_field(self, "directory", Path(self.directory).absolute())
        set_field(self, "snapshot_interval", parse_interval(self.snapshot_interval))
        set_field(self, "owner_deadline", parse_interval(self.owner_deadline))
        if self.wait_limit is not None:
            set_field(self, "wait_limit", parse_interval(self.wait_limit))
        if self.serve_at is not None:
            host_and_port(self.serve_at)
        self._check_owners()
        self._check_tls()
        if self.backup_interval is not None:
            set_field(self, "backup_interval", parse_interval(self.backup_interval))
        set_field(self, "rename_steps", dict(self.rename_steps))
        for new, count in Counter(self.rename_steps.values()).items():
            if count > 1:
                raise ConfigurationError(
                    f"{counted(count, 'step')} are to be renamed to {new!r}",
                    cause="The state of two steps cannot be merged.",
                    remedy="Give each its own new name, or drop one of them.",
                )
        set_field(self, "thresholds", dict(self.thresholds))
        parse_targets(self.thresholds)
        if self.metrics_port is not None and (type(self.metrics_port) is not int or not 0 <= self.metrics_port < 65536):
            raise ConfigurationError(
                f"{self.metrics_port!r} is not a port",
                cause="",
                remedy="Give a number up to 65535; 0 takes a free port.",
            )
        if self.scratch_directory is not None:
            given = os.fspath(self.scratch_directory)
            if file_system(given, "scratch_directory") is None:
                given = local_path(given).absolute()
            set_field(self, "scratch_directory", given)
        self._check_rewind()
        self._check_replicate()
        if self.until is not None:
            set_field(self, "until", parse_until(self.until))

    def _check_tls(self) -> None:
        given = [name for name in ("tls_cert", "tls_key", "tls_ca") if getattr(self, name) is not None]
        for name in given:
            object.__setattr__(self, name, local_path(getattr(self, name), "a file of this machine").absolute())
        if given == ["tls_ca"] and self.owners:
            return
        if given and not {"tls_cert", "tls_key"} <= set(given):
            raise ConfigurationError(
                f"{' and '.join(given)} without {'tls_key' if 'tls_cert' in given else 'tls_cert'}",
                cause="A certificate needs its key, and tls_ca a certificate that is checked with it.",
                remedy="Give both: --tls-cert FILE --tls-key FILE. Without them there is no TLS.",
            )

    def _check_rewind(self) -> None:
        for setting, least in (("resume_epoch", 1), ("resume_after", 0), ("rewind_again", 1)):
            given = getattr(self, setting)
            if given is not None and (type(given) is not int or given < least):
                raise ConfigurationError(
                    f"{setting.replace('_', ' ')} {given!r:.80} does not exist",
                    cause="Epochs and executions are numbered 1, 2, 3 …; resume_after=0 is the beginning.",
                    remedy="List them: python -m recovery status DIR",
                )
        both = None not in (self.resume_epoch, self.resume_after)
        if both and self.resume_epoch != self.rewind_to:
            raise ConfigurationError(
                f"resume_after={self.resume_after} and resume_epoch={self.resume_epoch} are two snapshots",
                cause="resume_epoch=3 is resume_after=2: the first names the epoch after the snapshot, the second "
                "the epoch before it.",
                remedy="Give one of them.",
            )

    def _check_replicate(self) -> None:
        set_field = object.__setattr__
        if isinstance(self.replicate_keep, str):
            set_field(self, "replicate_keep", (self.replicate_keep,))
        set_field(self, "replicate_keep", tuple(self.replicate_keep))
        for rule in self.replicate_keep:
            parse_keep(rule)
        if self.replicate is None:
            if self.replicate_sync or self.replicate_keep:
                raise ConfigurationError(
                    f"{'replicate_sync' if self.replicate_sync else 'replicate_keep'} without replicate",
                    cause="It says how epochs are replicated, and not where to.",
                    remedy="Name the place: --replicate DEST.",
                )
            return
        place = os.fspath(self.replicate)
        # The flow may change the working directory while it runs.
        set_field(self, "replicate", place if not place or "://" in place else os.fspath(local_path(place).absolute()))
        if "://" not in place and os.path.realpath(place) == os.path.realpath(self.path):
            raise ConfigurationError(
                "the recovery directory would be its own replica",
                path=place,
                cause="Whatever happens to the partitions happens to a copy beside them.",
                remedy="Name another place, best on another host.",
            )
        if given_backup_interval_s(self) == 0:
            raise ConfigurationError(
                "a run that replicates needs a backup interval, and 0 is given",
                cause="What an epoch replaced has to stay until it is shipped.",
                remedy="Give -b 10m, or leave -b out.",
            )

    def _check_owners(self) -> None:
        set_field = object.__setattr__
        if isinstance(self.owners, str):
            raise ConfigurationError(
                f"owners={self.owners!r} is a text, not a sequence of addresses",
                cause="A single owner was given without brackets.",
                remedy=f"Write owners=({self.owners!r},).",
            )
        set_field(self, "owners", checked_owners(self.owners))
        if self.token_file is not None:
            set_field(self, "token_file", local_path(self.token_file, "a file of this machine").absolute())

    @property
    def rewind_to(self) -> int | None:
        """The epoch that a rewind starts at; None without a rewind."""
        return self.resume_epoch if self.resume_after is None else self.resume_after + 1

    @property
    def path(self) -> Path:
        """The recovery directory. Raises ConfigurationError if none was given."""
        if self.directory is None:
            raise ConfigurationError(
                "no recovery directory was named",
                cause="RecoveryConfig was made without a directory. Only a pipeline whose state is in another state "
                "backend can do without.",
                remedy="Name the directory created by: python -m recovery init DIR N",
            )
        return Path(self.directory)

    @property
    def snapshot_interval_s(self) -> float:
        """The snapshot interval in seconds."""
        return parse_interval(self.snapshot_interval)

    @property
    def owner_deadline_s(self) -> float:
        """How long a task tries to reach the partitions, in seconds."""
        return parse_interval(self.owner_deadline)

    @property
    def wait_limit_s(self) -> float | None:
        """How long a run waits for executors or a source, in seconds; None: without limit."""
        return None if self.wait_limit is None else parse_interval(self.wait_limit)

    @property
    def backup_interval_s(self) -> float:
        """The backup interval in seconds; 0 if it is not given, which applies to the first run on a directory."""
        return given_backup_interval_s(self) or 0.0


def parse_until(given: int | str) -> int | str:
    """Return an epoch as a number, or a micro-batch as "batch:N". Raises ConfigurationError."""
    text = str(given)
    kind, colon, number = text.rpartition(":")
    if type(given) is bool or not number.isdecimal() or (colon and kind != "batch"):
        raise ConfigurationError(
            f"{text!r:.80} is neither an epoch nor a micro-batch",
            cause="",
            remedy="Write 17 for epoch 17, or batch:41 for micro-batch 41.",
        )
    return text if colon else int(number)


def checked_owners(owners: Iterable[str]) -> tuple[str, ...]:
    """Return the addresses of owners. Raises ConfigurationError for one that names no host and port, or is named
    twice."""
    found = tuple(owners)
    for owner in found:
        if not host_and_port(owner)[0]:
            raise ConfigurationError(f"{owner!r:.120} names no host", cause="", remedy="Write HOST:PORT.")
    if len(set(found)) < len(found):
        raise ConfigurationError("an owner is named twice", cause="", remedy="Name each owner once.")
    return found


def checkpoint_address(config: RecoveryConfig) -> str | None:
    """Return the address for Spark's checkpoint that all hosts reach; None if none is given."""
    return config.scratch_directory if isinstance(config.scratch_directory, str) else None


def given_backup_interval_s(config: RecoveryConfig) -> float | None:
    """Return the backup interval in seconds; None if it is not given, and then that of the last run applies."""
    return None if config.backup_interval is None else parse_interval(config.backup_interval)
