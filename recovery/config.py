"""The settings of a run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from recovery.base.addresses import host_and_port, local_path, owner_place
from recovery.base.intervals import Interval, parse_interval
from recovery.base.wording import counted
from recovery.errors import ConfigurationError
from recovery.places.address import file_system, is_uri
from recovery.places.opening import refuse_itself
from recovery.planning.backups import parse_keep
from recovery.planning.health import parse_targets
from recovery.planning.quarantine import parse_quarantine
from recovery.setting import setting

DEFAULT_MASTER = "local[*,3]"
"""Spark's default master: all cores, and two retries of a task whose Python worker was killed."""

REPLACE_AFTER = "60s"


@dataclass(frozen=True, slots=True)
class RecoveryConfig:
    """Where a flow keeps its recovery partitions, when it writes to them, and how a run starts.

    Each field says below what it does; docs/flow-api.md has the same as a table. The fields after backup_interval are
    given by name.

    Intervals are seconds as int or float, a timedelta, or text like "10s", "5m", "1h"; they are stored as seconds
    (float). Raises ConfigurationError.
    """

    directory: str | os.PathLike[str] | None = setting(
        None,
        "The recovery directory, created by `recovery init`. Without a directory a flow runs without recovery: its "
        "state is lost at the end. A pipeline whose state is in another state backend needs none.",
        "-r", "--recovery-directory",
        kind="directory", variables=("RECOVERY_DIRECTORY", "BYTEWAX_RECOVERY_DIRECTORY"),
    )  # fmt: skip
    snapshot_interval: Interval = setting(
        "10s",
        "Close an epoch after this time, at the next micro-batch; 0: after every one. See "
        "[operations](operations.md#how-often-to-close-an-epoch--s).",
        "-s", "--snapshot-interval",
        kind="interval", variables=("RECOVERY_SNAPSHOT_INTERVAL", "BYTEWAX_SNAPSHOT_INTERVAL"),
    )  # fmt: skip
    backup_interval: Interval | None = setting(
        None,
        "Keep superseded snapshots [this long](operations.md#how-long-to-keep-what-was-superseded--b), so that copies "
        "of the files taken at different moments still fit together, and runs can go back.",
        "-b", "--backup-interval",
        kind="interval", variables=("RECOVERY_BACKUP_INTERVAL", "BYTEWAX_RECOVERY_BACKUP_INTERVAL"),
        without="as the last run; 0 at first",
    )  # fmt: skip
    _: KW_ONLY
    discard_history: bool = setting(
        False,
        "Allow a backup interval shorter than the last run's, and discard the snapshots that only the longer one "
        "keeps. Without this option a run asks on a terminal, and elsewhere ends with HistoryLossError (15).",
        "--discard-history", kind="flag",
    )  # fmt: skip
    resume_after: int | None = setting(
        None,
        "Rewind: start from the snapshot after epoch E, and discard everything later; 0: from the beginning.",
        "--resume-after", kind="number", form="E", least=0, without="the newest",
    )  # fmt: skip
    resume_epoch: int | None = setting(
        None,
        "Rewind like --resume-after, by the number of the epoch to start with: 3 is --resume-after 2.",
        "--resume-epoch", kind="number", form="E", least=1, without="the newest",
    )  # fmt: skip
    rewind_again: int | None = setting(
        None,
        "Go back again, although this execution already went back to the same snapshot. Without this option the same "
        "rewind "
        "ends the second time with RewindRepeatedError (16), so that a service whose command line contains a rewind "
        "does not go back at each restart.",
        "--rewind-again", kind="number", form="EXECUTION", least=1,
    )  # fmt: skip
    drop_steps: tuple[str, ...] = setting(
        (),
        "Discard the state of a step that is not in the flow, whose key or state type no longer fits and that has no "
        "`migrate`, or whose state cannot be read.",
        "--drop-step", kind="texts", form="STEP",
    )  # fmt: skip
    rename_steps: Mapping[str, str] = setting(
        {},
        "Keep a step's state under its new id.",
        "--rename-step", kind="pairs", form="OLD=NEW", python="{old: new}",
    )  # fmt: skip
    keep_steps: tuple[str, ...] = setting(
        (),
        "Keep a step's state unchanged although its key or state type [was changed]"
        "(flow-api.md#changing-what-is-stored). Refused when the step cannot read that state.",
        "--keep-step", kind="texts", form="STEP",
    )  # fmt: skip
    takeover: bool = setting(
        False,
        "Take over the store from the run that has it: [promote](cli.md#promote) the recovery directory, a standby "
        "that `recovery follow` keeps current, and say what is lost; or, for a restored directory, [replace the writer]"
        "(backup.md#taking-over) at --replicate. Not for a service that restarts with this option: the option decides "
        "once.",
        "--takeover", kind="flag",
    )  # fmt: skip
    lose_epochs: bool = setting(
        False,
        "Go on although --replicate's place or the sink has epochs that this directory lacks, because it is an [older "
        "copy](sinks.md#two-directories-of-one-store), or [rows of closed epochs]"
        "(delta.md#when-somebody-else-has-changed-the-table) are gone from its table: they are lost. Without this "
        "option "
        "the run ends with StaleDirectoryError (53). Give the option once, by hand: a service that is always started "
        "with it would not notice the next older copy.",
        "--lose-epochs", kind="flag",
    )  # fmt: skip
    quarantine: int | str | None = setting(
        None,
        "How many rows may wait in [quarantine](bad-records.md#the-limit) before the run fails with QuarantineError "
        "(17) all the same: a bug is not a bad record. With a %, how much of a micro-batch's rows may enter it; both, "
        "as in 1000,1%, is possible. Counts more than what the flow says.",
        "--quarantine", form="ROWS|SHARE%", variable="RECOVERY_QUARANTINE", without="what the flow says, or `1000`",
    )  # fmt: skip
    lose_input: tuple[str, ...] = setting(
        (),
        "Go on although input of a source is [lost or was changed](reliability.md#the-input-that-is-read-again) since "
        "it was read, and leave out what is lost. NAME is the path, topic or table that the error names; other sources "
        "must be whole. Without this option the run ends with InputLostError (52) or InputRewrittenError (36), before "
        "it changes anything. Give the option once, by hand: the run closes an epoch behind the loss.",
        "--lose-input", kind="texts", form="NAME", variable="RECOVERY_LOSE_INPUT",
    )  # fmt: skip
    no_output: bool = setting(
        False,
        "For a [fork](cli.md#fork): compute the rows, but do not pass them to the flow's sink. Elsewhere the output of "
        "what is processed would never appear.",
        "--no-output", kind="flag",
    )  # fmt: skip
    until: int | str | None = setting(
        None,
        "For a fork: stop where its origin's input position was at the end of this epoch or micro-batch (`batch:41`). "
        "The input up to there is one micro-batch.",
        "--until", form="EPOCH|batch:N", without="the end of the input",
    )  # fmt: skip
    wait_limit: Interval | None = setting(
        None,
        "End with SparkUnavailableError (50) when the run has [waited](metrics.md#waiting-for-spark) this long for "
        "executors, for room in YARN's queue, or for a source to say what it has.",
        "--wait-limit", kind="interval", variable="RECOVERY_WAIT_LIMIT", without="no limit",
    )  # fmt: skip
    kafka_group: str | None = setting(
        None,
        "The consumer group that [shows tools of Kafka](kafka.md#lag) the offsets of each closed epoch; off: none. The "
        "run reads nothing back from it.",
        "--kafka-group", form="NAME|off", variable="RECOVERY_KAFKA_GROUP", without="recovery-FLOW",
    )  # fmt: skip
    replicate: str | os.PathLike[str] | None = setting(
        None,
        "[Ship each closed epoch](backup.md#replication) to DEST in the background, as an incremental backup: a "
        "directory or s3://, gs://, azure://. No epoch waits for the replica. With owners, each ships its own "
        "partitions. A directory that never had a backup interval then gets ten minutes.",
        "--replicate", form="DEST", variable="RECOVERY_REPLICATE",
    )  # fmt: skip
    replicate_sync: bool = setting(
        False,
        "Show an epoch's output at the sink only when the epoch is shipped.",
        "--replicate-sync", kind="flag",
    )  # fmt: skip
    replicate_complete: bool = setting(
        False,
        "End the run with 60 if DEST lacks an epoch at its end. Without this option the run says so, and the next run "
        "ships the epoch.",
        "--replicate-complete", kind="flag",
    )  # fmt: skip
    replicate_keep: tuple[str, ...] = setting(
        (),
        "Remove older backups at DEST, by the rules of [`backup --keep`](cli.md#backup).",
        "--replicate-keep", kind="texts", form="N|AGE|AGE/EVERY", without="all stay",
    )  # fmt: skip
    serve_at: str | None = setting(
        None,
        "On a cluster: where tasks reach the partitions on this host; see [clusters](clusters.md#ports-and-names).",
        "--serve", form="[HOST]:PORT", variable="RECOVERY_SERVE", without="spark.driver.host, a free port",
    )  # fmt: skip
    owner_deadline: Interval = setting(
        "60s",
        "On a cluster: how long a task tries to reach partitions that are not files of its host before it fails.",
        kind="interval",
    )
    tls_cert: str | os.PathLike[str] | None = setting(
        None,
        "On a cluster: the certificate that tasks of other hosts see, a PEM file. Without a certificate, states cross "
        "the network without encryption.",
        "--tls-cert", kind="file",
    )  # fmt: skip
    tls_key: str | os.PathLike[str] | None = setting(
        None,
        "The key of the certificate that --tls-cert names, a PEM file.",
        "--tls-key", kind="file",
    )  # fmt: skip
    tls_ca: str | os.PathLike[str] | None = setting(
        None,
        "A PEM file of certificates that verify the owners and, on a cluster, [this run](clusters.md#ports-and-names). "
        "Without this file, connections to owners have no TLS, and tasks verify --tls-cert with that file itself.",
        "--tls-ca", kind="file", variable="RECOVERY_TLS_CA",
    )  # fmt: skip
    owners: tuple[str, ...] = setting(
        (),
        "An [owner](clusters.md#partitions-on-several-hosts) (`recovery serve`) that has other partitions of the "
        "store. NAME: one of [several directories](owners.md#several-directories) of the owner. RECOVERY_OWNERS lists "
        "several owners, separated by commas.",
        "--owner", kind="texts", form="HOST:PORT[/NAME]", variable="RECOVERY_OWNERS",
    )  # fmt: skip
    token_file: str | os.PathLike[str] | None = setting(
        None,
        "The file with the token of the owners.",
        "--token-file", kind="file", variable="RECOVERY_TOKEN_FILE",
    )  # fmt: skip
    replace_from: str | os.PathLike[str] | None = setting(
        None,
        "If an owner is lost, or is not there at the start, [bring its partitions back](owners.md#replacing-by-itself) "
        "at the other owners, and go on. PLACE has backups of the store, best a replica that --replicate keeps. "
        "Without this option the run ends with OwnerUnreachableError (47).",
        "--replace-from", form="PLACE", variable="RECOVERY_REPLACE_FROM",
    )  # fmt: skip
    replace_after: Interval = setting(
        REPLACE_AFTER,
        "How long an owner may be away before --replace-from replaces it.",
        "--replace-after", kind="interval", variable="RECOVERY_REPLACE_AFTER",
    )  # fmt: skip
    scratch_directory: str | os.PathLike[str] | None = setting(
        None,
        "Where to keep what need not survive the run: touched state and Spark's checkpoint. A RAM disk is enough. For "
        "the [state of Spark's own operators](clusters.md#state-of-sparks-own-operators) on a cluster: an address that "
        "all hosts reach, such as s3a://bucket/scratch or file:///mnt/share/scratch.",
        "--scratch", form="DIR|ADDRESS", variable="RECOVERY_SCRATCH", without="inside the recovery directory",
    )  # fmt: skip
    thresholds: Mapping[str, Any] = setting(
        {},
        "Override the levels of a [target](metrics.md#targets), as in snapshot-duration=5s/20s, or turn the target off "
        "with =off.",
        "--threshold", kind="pairs", form="TARGET=WARNING/CRITICAL", variable="RECOVERY_THRESHOLD",
        python='{"snapshot-duration": "5s/20s"}',
    )  # fmt: skip
    metrics_port: int | None = setting(
        None,
        "Serve [metrics for Prometheus](metrics.md#prometheus) at this port during the run; 0: a free port.",
        "--metrics-port", kind="number", form="PORT", least=0, most=65535, variable="RECOVERY_METRICS_PORT",
    )  # fmt: skip
    metrics_host: str = setting(
        "127.0.0.1",
        "The address at which to serve metrics.",
        "--metrics-host", variable="RECOVERY_METRICS_HOST",
    )  # fmt: skip
    ui: str | None = setting(
        None,
        "Serve [pages and JSON](ui.md#beside-a-run) about the run at this address of the loopback interface, from a "
        "process that ends with the run; port 0: a free one.",
        "--ui", form="[HOST]:PORT",
    )  # fmt: skip
    state_backend: str | None = setting(
        None,
        "Where operational state and the [run history](operational-state.md#run-history) are: file://, s3://, azure:// "
        "or gs://.",
        "--state-backend", form="URI", variable="RECOVERY_STATE_BACKEND", without="in the directory",
    )  # fmt: skip

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        if self.directory is not None and not os.fspath(self.directory):
            raise ConfigurationError(
                "the recovery directory has no name",
                cause="A setting or environment variable is empty.",
                remedy="Name the directory created by: python -m recovery init DIR N",
            )
        for name, what in (("drop_steps", "step id"), ("keep_steps", "step id"), ("lose_input", "name")):
            given = getattr(self, name)
            if isinstance(given, str):
                raise ConfigurationError(
                    f"{name}={given!r} is a text, not a sequence of {what}s",
                    cause=f"A single {what} was given without brackets.",
                    remedy=f"Write {name}=({given!r},).",
                )
            set_field(self, name, tuple(given))
        if self.directory is not None:
            if self.directory != self.state_backend:
                local_path(self.directory)
            # The flow may change the working directory while it runs.
            set_field(self, "directory", Path(self.directory).absolute())
        set_field(self, "snapshot_interval", parse_interval(self.snapshot_interval))
        set_field(self, "owner_deadline", parse_interval(self.owner_deadline))
        set_field(self, "replace_after", parse_interval(self.replace_after))
        if self.wait_limit is not None:
            set_field(self, "wait_limit", parse_interval(self.wait_limit))
        if self.serve_at is not None:
            host_and_port(self.serve_at)
        self._check_quarantine()
        self._check_owners()
        self._check_group()
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

    def _check_group(self) -> None:
        if self.kafka_group is not None and not self.kafka_group.strip():
            raise ConfigurationError(
                "the consumer group has no name",
                cause="A setting or environment variable is empty.",
                remedy="Name the group, or give --kafka-group off.",
            )

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
                remedy="Give both: --tls-cert FILE --tls-key FILE. Without these files there is no TLS.",
            )

    def _check_quarantine(self) -> None:
        if self.quarantine is not None:
            parse_quarantine(self.quarantine)

    def _check_rewind(self) -> None:
        for name, least in (("resume_epoch", 1), ("resume_after", 0), ("rewind_again", 1)):
            given = getattr(self, name)
            if given is not None and (type(given) is not int or given < least):
                raise ConfigurationError(
                    f"{name.replace('_', ' ')} {given!r:.80} does not exist",
                    cause="Epochs and executions are numbered 1, 2, 3 …; resume_after=0 is the beginning.",
                    remedy="List the epochs: python -m recovery status DIR",
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
            given = ("replicate_sync", "replicate_complete", "replicate_keep")
            named = next((name for name in given if getattr(self, name)), None)
            if named is not None:
                raise ConfigurationError(
                    f"{named} without replicate",
                    cause="The setting says how epochs are replicated, and not where to.",
                    remedy="Name the place: --replicate DEST.",
                )
            return
        place = os.fspath(self.replicate)
        # The flow may change the working directory while it runs.
        set_field(self, "replicate", place if not place or is_uri(place) else os.fspath(local_path(place).absolute()))
        # What is wrong with an address, the run says that ships to it.
        if place and (not is_uri(place) or place.startswith("file:")):
            refuse_itself(place, self.path, "replica")
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
        if self.replace_from is not None:
            place = os.fspath(self.replace_from)
            given = place if not place or is_uri(place) else os.fspath(local_path(place).absolute())
            set_field(self, "replace_from", given)
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
        """How long a run waits for executors, YARN or a source, in seconds; None: without limit."""
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
    """Return the addresses of owners. Raises ConfigurationError for a text that is none, and for an owner that is named
    twice."""
    found = tuple(owners)
    for owner in found:
        owner_place(owner)
    if len(set(found)) < len(found):
        raise ConfigurationError("an owner is named twice", cause="", remedy="Name each owner once.")
    return found


def checkpoint_address(config: RecoveryConfig) -> str | None:
    """Return the address for Spark's checkpoint that all hosts reach; None if none is given."""
    return config.scratch_directory if isinstance(config.scratch_directory, str) else None


def given_backup_interval_s(config: RecoveryConfig) -> float | None:
    """Return the backup interval in seconds; None if it is not given, and then that of the last run applies."""
    return None if config.backup_interval is None else parse_interval(config.backup_interval)
