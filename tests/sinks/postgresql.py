"""A PostgreSQL server of the tests' own, run by a user without rights of the system."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MODULES = ("psycopg", "pg8000")
SUPERUSER = "tester"
# What is tested is what the server answers; that its own log is durable is not in doubt.
SETTINGS = ("fsync=off", "full_page_writes=off", "listen_addresses=", "max_connections=20", "shared_buffers=16MB")


def _programs() -> Path | None:
    """Return the directory of `initdb` and `postgres`; Debian's packages do not put it on the path."""
    found = shutil.which("postgres")
    versions = Path("/usr/lib/postgresql").glob("*/bin")
    places = [
        *sorted(versions, key=lambda path: float(path.parent.name)),
        *([Path(found).resolve().parent] if found else []),
    ]
    return next((path for path in reversed(places) if (path / "initdb").exists()), None)


@functools.cache
def _templates() -> tempfile.TemporaryDirectory[str]:
    """Where the data of a new server is: a copy takes a tenth of the time that making it takes."""
    return tempfile.TemporaryDirectory(prefix="pg-")


class Server:
    """A server below a directory, which it is reached through. of: it is a standby of that one."""

    def __init__(self, home: Path, programs: Path, of: Server | None = None) -> None:
        self.home, self._programs = home, programs
        # PostgreSQL refuses to run as root.
        nobody = pwd.getpwnam("nobody")
        self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []} if os.getuid() == 0 else {}
        if self._user:
            os.chown(home, nobody.pw_uid, nobody.pw_gid)
        self._process: subprocess.Popen | None = None
        self._names = itertools.count()
        self._log = (home / "log").open("ab")
        if of is not None:
            options = ["-h", of.home, "-U", SUPERUSER, "--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
            assert self._run("pg_basebackup", "-D", home / "data", *options).wait() == 0
        else:
            made = Path(_templates().name) / "data"
            if not made.exists():
                if self._user:
                    os.chown(made.parent, nobody.pw_uid, nobody.pw_gid)
                options = ["--no-sync", "--auth=trust", "--no-locale", "--encoding=UTF8", "--username", SUPERUSER]
                self._run("initdb", "-D", made, *options).wait()
            subprocess.run(["cp", "-R", "-p", made, home], check=True, **self._user)
        self.start()

    def start(self) -> None:
        """Start the server and wait until it answers."""
        settings = [word for each in SETTINGS for word in ("-c", each)]
        self._process = self._run("postgres", "-D", self.home / "data", "-k", self.home, *settings)
        deadline_s = time.monotonic() + 60
        while True:
            try:
                self.connect("psycopg", "postgres").close()
                return
            except Exception:
                log = (self.home / "log").read_text(errors="replace")
                assert self._process.poll() is None, log
                assert time.monotonic() < deadline_s, log
            time.sleep(0.02)

    def stop(self, number: int = signal.SIGQUIT) -> None:
        """Stop it: SIGQUIT ends every connection without an end of its transaction, SIGINT politely."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(60)
            self._process = None

    def connect(self, module: str, database: str, user: str = SUPERUSER) -> Any:
        """Return a new connection of a module, as its users write it."""
        if module == "pg8000":
            import pg8000.dbapi

            socket = str(self.home / ".s.PGSQL.5432")
            # Reading the certificates that a socket does not need takes longer than what the tests do.
            return pg8000.dbapi.connect(user, database=database, unix_sock=socket, ssl_context=False)
        import psycopg

        return psycopg.connect(host=str(self.home), dbname=database, user=user)

    def standby(self, home: Path) -> Server:
        """Make a standby, which has all that this server has committed, and start it."""
        home.mkdir()
        return Server(home, self._programs, self)

    def administer(self, *statements: str, database: str = "postgres") -> list[tuple]:
        """Execute statements outside of a transaction; return the rows of the last one."""
        with contextlib.closing(self.connect("psycopg", database)) as connection:
            connection.autocommit = True
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def database(self, module: str, template: str = "template1") -> Database:
        """Make a database, empty or a copy of another."""
        name = f"d{next(self._names)}"
        self.administer(f"CREATE DATABASE {name} TEMPLATE {template}")
        return Database(self, module, name)

    def _run(self, program: str, *options: object) -> subprocess.Popen:
        command = [self._programs / program, *map(str, options)]
        return subprocess.Popen(command, cwd="/", stdout=self._log, stderr=self._log, **self._user)


class Pooler:
    """PgBouncer in transaction mode before a server: the transactions of all connections share two sessions."""

    def __init__(self, server: Server, program: str, settings: str = "") -> None:
        """settings: lines that count instead of those below."""
        self.server, self.home = server, server.home / "pool"
        self.home.mkdir()
        (self.home / "users").write_text(f'"{SUPERUSER}" ""\n')
        (self.home / "ini").write_text(
            f"""
            [databases]
            * = host={server.home}
            [pgbouncer]
            listen_addr =
            unix_socket_dir = {self.home}
            auth_type = trust
            auth_file = {self.home}/users
            pool_mode = transaction
            default_pool_size = 2
            server_login_retry = 1
        """.replace("            ", "")
            + f"\n{settings}\n"
        )
        if os.getuid() == 0:
            os.chown(self.home, pwd.getpwnam("nobody").pw_uid, -1)
        self._process = server._run(program, self.home / "ini")
        deadline_s = time.monotonic() + 60
        while not self._answers():
            assert self._process.poll() is None, (server.home / "log").read_text(errors="replace")
            assert time.monotonic() < deadline_s
            time.sleep(0.02)

    def _answers(self) -> bool:
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as client:
            return client.connect_ex(str(self.home / ".s.PGSQL.6432")) == 0

    def connect(self, module: str, database: str) -> Any:
        """Return a new connection of a module."""
        if module == "pg8000":
            import pg8000.dbapi

            socket = str(self.home / ".s.PGSQL.6432")
            return pg8000.dbapi.connect(SUPERUSER, database=database, unix_sock=socket, ssl_context=False)
        import psycopg

        return psycopg.connect(host=str(self.home), port=6432, dbname=database, user=SUPERUSER)

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


class Database:
    """A database of the server, which one module's connections lead to."""

    def __init__(self, server: Server, module: str, name: str) -> None:
        self.server, self.module, self.name, self.user = server, module, name, SUPERUSER

    def connect(self) -> Any:
        return self.server.connect(self.module, self.name, self.user)

    def execute(self, *statements: str) -> list[tuple]:
        return self.server.administer(*statements, database=self.name)


@contextlib.contextmanager
def running() -> Iterator[Server]:
    """A server of its own for a time; skips the test where there is none to be had."""
    for module in MODULES:
        pytest.importorskip(module)
    programs = _programs()
    if programs is None:
        pytest.skip("no PostgreSQL server is installed: apt-get install postgresql")
    # Not pytest's directory: other users may not enter that, and a socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="pg-") as home:
        server = Server(Path(home), programs)
        try:
            yield server
        finally:
            server.stop()
