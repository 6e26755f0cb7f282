"""A named pipe in place of a file or a directory that a user names: no command waits for who would write into it."""

from __future__ import annotations

import os
import threading

import pytest
from click.testing import CliRunner, Result

from recovery.cli import main
from tests.owner.served import recovery, token_file
from tests.waiting import wait_until
from tests.wire.certificates import make_certificates

OWNER = "--owner 127.0.0.1:1"
SERVE = "serve DIR --at 127.0.0.1:0"
COMMANDS = [
    f"status DIR {OWNER} --token-file PIPE", f"status DIR {OWNER} --token-file TOKEN --tls-ca PIPE",
    f"run FLOW -r DIR {OWNER} --token-file PIPE", f"run FLOW -r DIR {OWNER} --token-file TOKEN --tls-ca PIPE",
    f"{SERVE} --token-file PIPE", f"{SERVE} --token-file TOKEN --tls-cert PIPE --tls-key KEY",
    f"{SERVE} --token-file TOKEN --tls-cert CERT --tls-key PIPE", f"{SERVE} --token-file TOKEN --tls-cert PIPE",
    "serve --check 127.0.0.1:1 --token-file PIPE", "serve --check 127.0.0.1:1 --token-file TOKEN --tls-ca PIPE",
    "serve PIPE --at 127.0.0.1:0 --token-file TOKEN",
    "run PIPE -r DIR", "run FLOW -r DIR --properties-file PIPE", "run FLOW -r PIPE",
    "checkpoint show DIR --operator 0 --properties-file PIPE", "checkpoint import PIPE DIR --flow x",
    "import bytewax PIPE NEW --rename-step a=b", "import bytewax THEIRS NEW --rename-step a=b --input x=PIPE",
    "state import DIR PIPE --yes", "state merge DIR process/a/b --input-file PIPE",
    "state set DIR process/a/b --input-file PIPE --yes",
    "status PIPE", "plan PIPE", "verify PIPE", "gc PIPE", "report PIPE -o NEW", "history PIPE --step a --key b",
    "diff DIR PIPE", "backup PIPE NEW", "backup DIR PIPE", "restore PIPE NEW", "drill PIPE", "follow PIPE NEW --once",
    "promote PIPE", "fork PIPE NEW", "fork DIR PIPE", "repartition DIR PIPE 3", "init PIPE 2", "runs PIPE",
    "advise PIPE", "hwm list PIPE", "state list PIPE",
]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS)
def test_no_command_waits_for_a_pipe(tmp_path, monkeypatch, words):
    """A command ends in time, with a typed error that names the pipe, and leaves the pipe where it is."""
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(main, ["init", "db", "2"])
    (tmp_path / "theirs").mkdir()
    (tmp_path / "flow.py").write_text("flow = None\n")
    pipe = tmp_path / "pipe.py"
    os.mkfifo(pipe)
    certificate, key, _ = make_certificates(tmp_path)
    stands = {
        "DIR": "db", "PIPE": pipe, "TOKEN": token_file(tmp_path), "KEY": key, "CERT": certificate, "NEW": "new",
        "FLOW": "flow.py", "THEIRS": "theirs", "x=PIPE": f"x={pipe}",
    }  # fmt: skip
    given = [str(stands.get(word, word)) for word in words.split()]
    code, output = in_process(given) if given[0] == "serve" else in_thread(given)
    assert code not in (0, 1), output
    assert "Traceback" not in output
    assert pipe.is_fifo()


def in_thread(words: list[str]) -> tuple[int, str]:
    found: list[Result] = []
    threading.Thread(target=lambda: found.append(CliRunner().invoke(main, words)), daemon=True).start()
    wait_until(lambda: bool(found), 60)
    return found[0].exit_code, found[0].output


def in_process(words: list[str]) -> tuple[int, str]:
    """A service takes signals, which only the main thread can."""
    ended = recovery(*words)
    return ended.returncode, ended.stdout + ended.stderr
