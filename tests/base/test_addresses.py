"""What looks like an address and is none is refused, wherever a path or an address is taken; nothing is made."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from recovery import FileSink, RecoveryConfig, StateManager, init_partitions
from recovery.base.addresses import host_and_port, is_cut_off, local_path, looks_like_address, owner_place
from recovery.cli import main
from recovery.errors import ConfigurationError
from recovery.operational.backends.open import open_backend
from recovery.places.opening import open_place
from recovery.sinks.all_keys import AllKeysSink
from recovery.spark.sources.operator_state import native_operators

CUT_OFF = ("s3:/bucket/x", "s3:bucket/x", "s3//bucket/x", "S3:/bucket", "gs:/bucket/x", "azure:/box/x", "abfs:/box/x",
           "nas:/srv/copies", "s3:")  # fmt: skip


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Whatever would be made of such a name would be made here."""
    monkeypatch.chdir(tmp_path)
    for name in ("RECOVERY_DIRECTORY", "RECOVERY_STATE_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    init_partitions("db", 1)
    yield
    assert [path.name for path in tmp_path.iterdir()] == ["db"]


@pytest.mark.parametrize(
    "text", [*CUT_OFF, "s3://bucket/x", "file:/x", "file://x", "https://host/x", "host:/x", "x-y.z:"]
)
def test_what_looks_like_one(text):
    """The known ones with any text behind them, others with a slash or nothing."""
    assert looks_like_address(text)
    with pytest.raises(ConfigurationError, match=r"looks like an address"):
        local_path(text)


@pytest.mark.parametrize(
    "text", ["db", "a:b", "10:30", "logs:2024", "C:\\x", "C:/x", "./s3:/x", "/s3:/x", "s3", "gs/x", "", "~/s3:"]
)
def test_what_does_not(text):
    """Names with a colon in them are names."""
    assert not looks_like_address(text)


def test_no_credentials_are_shown():
    """What is refused may hold some."""
    with pytest.raises(ConfigurationError) as refused:
        local_path("s3:/key:secret@bucket")
    assert "secret" not in str(refused.value)


def test_addresses_of_file_systems():
    """Hadoop writes some with one slash."""
    assert not any(map(is_cut_off, ["hdfs:/x", "file:/x", "hdfs://host/x", "s3a://bucket/x"]))
    assert all(map(is_cut_off, ["s3a:/bucket/x", "abfs:/box/x", "gs:/x"]))


COMMANDS = [
    ["init", "@", "1"], ["run", "flow.py", "-r", "@"], ["status", "@"], ["plan", "@"], ["verify", "@"], ["advise", "@"],
    ["report", "@"], ["report", "db", "-o", "@"], ["gc", "@"], ["backup", "db", "@"], ["backup", "@", "copies"],
    ["backup", "--list", "@"], ["backup", "--prune", "--keep", "1", "@"], ["restore", "@", "new"],
    ["restore", "db", "@"], ["drill", "@"], ["checkpoint", "export", "db", "@"], ["checkpoint", "export", "@", "to"],
    ["checkpoint", "import", "@", "db", "--flow", "f"], ["checkpoint", "import", "from", "@", "--flow", "f"],
    ["checkpoint", "show", "@"], ["hwm", "list", "@"], ["hwm", "set", "@", "key", "1"], ["runs", "@"],
    ["runs", "clean", "@", "--older-than", "1d"], ["state", "list", "@"], ["state", "set", "@", "id", "1"],
    ["state", "export", "@"], ["state", "export", "db", "--output-file", "@"], ["state", "import", "db", "@"],
    ["state", "set", "db", "id", "--input-file", "@"], ["state", "migrate", "db", "@"], ["state", "migrate", "@", "db"],
    ["state", "list", "--state-backend", "@"], ["state", "list", "@", "--step", "s"], ["demo", "--directory", "@"],
]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command(words):
    """Wherever it is."""
    for text in CUT_OFF:
        found = CliRunner().invoke(main, [text if word == "@" else word for word in words])
        assert found.exit_code == 11, (text, found.output)
        assert "address" in found.output or "URI" in found.output, text


VARIABLES = {
    "RECOVERY_DIRECTORY": [["status"], ["hwm", "list"], ["backup", "copies"], ["run", "flow.py"]],
    "RECOVERY_STATE_BACKEND": [["hwm", "list"]],
}


@pytest.mark.parametrize(("name", "words"), [(name, words) for name, all_ in VARIABLES.items() for words in all_])
def test_environment_variables(monkeypatch, name, words):
    """The same for what they say."""
    for text in CUT_OFF:
        monkeypatch.setenv(name, text)
        assert CliRunner().invoke(main, words).exit_code == 11, text


@pytest.mark.parametrize(
    "call",
    [RecoveryConfig, FileSink, lambda text: AllKeysSink(SimpleNamespace(all_keys=print), text, print),
     lambda text: native_operators(None, text), open_place, StateManager,
     lambda text: init_partitions(text, 1), lambda text: RecoveryConfig("db", scratch_directory=text),
     lambda text: StateManager("db", backend=text), lambda text: open_backend(text, None, None)],
    ids=["config", "file sink", "all keys", "native", "target", "manager", "init", "scratch", "backend", "open"],
)  # fmt: skip
def test_python(call):
    """The functions and classes that take one."""
    for text in CUT_OFF:
        with pytest.raises(ConfigurationError):
            call(text)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [(":7400", "", 7400), ("h-1.example:0", "h-1.example", 0), ("10.0.0.1:65535", "10.0.0.1", 65535),
     ("[::1]:80", "[::1]", 80)],
)  # fmt: skip
def test_addresses_to_listen_at(text, host, port):
    """A host may be left out, the port may not."""
    assert host_and_port(text) == (host, port)


@pytest.mark.parametrize("text", ["", "h", "h:", "7400", ":65536", "::1:80", "h:80 ", "http://h:80", "h:-1", "h:٣"])
def test_what_is_no_address_to_listen_at(text):
    """It is refused before anything starts, also as a setting of a run."""
    with pytest.raises(ConfigurationError, match="no address to listen at"):
        host_and_port(text)
    with pytest.raises(ConfigurationError, match="no address to listen at"):
        RecoveryConfig("db", serve_at=text)


@pytest.mark.parametrize(("text", "found"), [
    ("h1:7337", ("h1", 7337, "")), ("h1:7337/words", ("h1", 7337, "words")), ("[::1]:7/a.b-c_1", ("::1", 7, "a.b-c_1")),
    ("h1:7337/", None), ("h1:7337/a/b", None), ("h1:7337/..", None), ("h1:7337/wörter", None), ("h1:7337/a b", None),
    (":7337/words", None), ("h1/words", None), ("h1:70000/words", None), (f"h1:1/{'a' * 65}", None), ("", None),
])  # fmt: skip
def test_the_place_of_an_owner(text, found):
    """Host, port and perhaps the name of one of its directories; the error shows both forms."""
    if found is not None:
        assert owner_place(text) == found
        return
    with pytest.raises(ConfigurationError, match="is no address of an owner") as error:
        owner_place(text)
    assert "HOST:PORT/NAME" in error.value.remedy
