"""What must not be shown is not in messages, however it is written, and messages stay readable."""

from __future__ import annotations

import pytest

from recovery.errors import ConfigurationError
from recovery.operational.backends.open import STATE
from recovery.places.address import parse_address
from recovery.places.opening import COPIES
from recovery.places.secrets import LONGEST_MESSAGE, Secrets, shown_address, shown_word, without_password


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("s3://key:secret@bucket/path?region=r", "s3://bucket/path"),
        ("gs://anonymous@bucket/a@b", "gs://anonymous@bucket/a@b"),
        ("s3://key:sec/ret@bucket/path", "s3://…"),
        ("s3://key:secret/bucket", "s3://…"),
        ("s3://bucket:9000/p", "s3://bucket:9000/p"),
        ("abfs://account:secret@container/p", "abfs://container/p"),
        ("backups/a@b", "backups/a@b"),
    ],
)
def test_addresses(address, shown):
    """Without credentials and settings."""
    assert shown_address(address) == shown


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("s3://key:secret@bucket/path?region=r", "s3://key:…@bucket/path?region=r"),
        ("s3://key:sec/ret@bucket/path", "s3://…"),
        ("--replicate=s3://key:secret@bucket", "--replicate=s3://key:…@bucket"),
        ("fs.s3a.secret.key=secret", "fs.s3a.secret.key=…"),
        ("--conf=fs.s3a.secret.key=secret", "--conf=fs.s3a.secret.key=…"),
        ("--token-file=token", "--token-file=token"),
        ("s3://bucket/path?region=r", "s3://bucket/path?region=r"),
        ("host:9000", "host:9000"),
        ("--key", "--key"),
    ],
)
def test_words_of_a_command_line(word, shown):
    """Whatever is no secret stays, so that only this has to be put in again."""
    assert shown_word(word) == shown


@pytest.mark.parametrize("text", ["key%2Fsecret", "pass@word", "abcd"])
def test_messages(text):
    """A secret as it was written and decoded, in a URL and alone."""
    secrets = Secrets([text])
    said = secrets.scrubbed(f"no login at ftp://user:{text}@host/a, {text} or {text.replace('%2F', '/')} is wrong")
    assert said == "no login at ftp://user@host/a, *** or *** is wrong"


def test_short_secrets_spoil_no_words():
    """They are hidden where an address holds them, and nowhere else."""
    assert Secrets(["ab"]).scrubbed("s3://u:ab@host is not about") == "s3://u@host is not about"


def test_what_clients_say(monkeypatch):
    """Signatures in URLs, variables of the environment, and dumps for developers; the rest is cut to a message."""
    monkeypatch.setenv("SOME_API_TOKEN", "hunter2hunter2")
    said = Secrets().scrubbed('GET "https://h/c/p?sig=abc&se=1" with hunter2hunter2 failed\n\nDebug source:\nkey: x')
    assert said == 'GET "https://h/c/p?…" with *** failed'
    assert len(Secrets().scrubbed("x" * 5000)) == LONGEST_MESSAGE


def test_addresses_of_hadoop_keep_the_name():
    """And the port, which is no password."""
    assert without_password("ftp://user:secret@host:21/a")[0] == "ftp://user@host:21/a"
    assert not without_password("hdfs://host:8020/a@b")[1]


@pytest.mark.parametrize("purpose", [COPIES, STATE], ids=["copies", "state"])
@pytest.mark.parametrize(
    "address", ["s3://key:secret℀@bucket/p", "s3://key:secret@", "gs://key:secret@b/p", "x://key:secret@b/p",
                "s3://key:secret@[b/p", "s3://key:secret@b/p#x", "s3://key:secret@b/p?colour=1", "s3://key:se/cret@b/p",
                "s3://key:secret/b/p"],
)  # fmt: skip
def test_refused_addresses_repeat_no_secret(purpose, address):
    """Python's parser does: it names the part that it cannot read."""
    with pytest.raises(ConfigurationError) as refused:
        parse_address(address, purpose)
    assert "secret" not in str(refused.value)
    assert "cret@" not in str(refused.value)
    assert refused.value.__cause__ is None
