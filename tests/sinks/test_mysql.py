"""UpsertSink with a MariaDB server: it is refused by name, before anything is made in the database."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from recovery import UpsertSink
from recovery.errors import ConfigurationError
from tests.sinks.support import Store


@pytest.fixture(scope="module")
def connect():
    """A function that connects to a database of a server of the tests' own."""
    pymysql = pytest.importorskip("pymysql")
    install, program = shutil.which("mariadb-install-db"), shutil.which("mariadbd") or "/usr/sbin/mariadbd"
    if install is None or not Path(program).exists():
        pytest.skip("no MariaDB server is installed: apt-get install mariadb-server")
    # Not pytest's directory: other users may not enter that, and a socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="mysql-") as home:
        user = "nobody" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
        os.chown(home, pwd.getpwnam(user).pw_uid, -1)
        options = ["--no-defaults", f"--user={user}", f"--datadir={home}/data"]
        made = [install, *options, "--auth-root-authentication-method=normal", "--skip-test-db"]
        subprocess.run(made, check=True, capture_output=True)
        process = subprocess.Popen([program, *options, f"--socket={home}/s", "--skip-networking"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip

        def connected(database="words"):
            return pymysql.connect(unix_socket=f"{home}/s", user="root", database=database)

        deadline_s = time.monotonic() + 60
        while True:
            try:
                with contextlib.closing(connected("mysql")) as connection, connection.cursor() as cursor:
                    cursor.execute("CREATE DATABASE words")
                break
            except pymysql.err.OperationalError:
                assert time.monotonic() < deadline_s
                time.sleep(0.05)
        with contextlib.closing(connected()) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE words (word VARCHAR(20) PRIMARY KEY, n INT)")
        yield connected
        process.send_signal(signal.SIGKILL)
        process.wait()


class Elsewhere:
    """The same connection as that of a module that is not known."""

    def __init__(self, connection) -> None:
        self.cursor, self.close = connection.cursor, connection.close


@pytest.mark.parametrize("known", [True, False], ids=["its module", "an unknown module"])
def test_it_is_refused(connect, known):
    """By the name of the connection's module, or by what the server says; and there is a way out."""
    opened = connect if known else lambda: Elsewhere(connect())
    sink = UpsertSink(opened, "words", ["word"], paramstyle=None if known else "format")
    with pytest.raises(ConfigurationError, match="UpsertSink cannot write to MySQL or MariaDB") as caught:
        sink.check(Store().begin())
    assert "INSERT … ON DUPLICATE KEY UPDATE" in caught.value.remedy
    with contextlib.closing(connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SHOW TABLES")
        assert cursor.fetchall() == (("words",),)
