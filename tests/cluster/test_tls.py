"""Tasks of other hosts reach the partitions over TLS."""

from __future__ import annotations

import json
import re

import pytest

from recovery import init_partitions
from tests.cluster.support import assert_exact
from tests.flows.cluster import truth
from tests.stores import query
from tests.wire.certificates import make_certificates


@pytest.mark.long
def test_a_word_count_over_tls_and_a_certificate_of_another_host(lab, tmp_path):
    """Exact, and the key is nowhere in what Spark logs. A certificate that tasks would not accept ends the next run
    with 48 before it begins an execution."""
    db = tmp_path / "db"
    init_partitions(db, 4)
    certificate, key, authority = make_certificates(tmp_path, addresses=(lab.network.driver.address,))
    secret = key.read_text().splitlines()[1]
    # One file with everything, as some authorities deliver it.
    certificate.write_text(key.read_text() + certificate.read_text())
    events = tmp_path / "events"
    events.mkdir()
    settings = {"enabled": "true", "compress": "false", "dir": f"file:{events}"}
    logged = [each for name, value in settings.items() for each in ("--conf", f"spark.eventLog.{name}={value}")]
    files = ("--tls-cert", certificate, "--tls-key", certificate, "--tls-ca", authority)
    output = lab.run("cluster.py:counts(2000, 2)", db, "-s", "0", "-b", "1h", *files, *logged).succeed()
    assert assert_exact(db, 2000) == 3
    text = "".join(path.read_text() for path in events.rglob("*") if path.is_file())
    [address] = set(re.findall(r'"recovery\.address":("(?:[^"\\]|\\.)*")', text))
    assert json.loads(json.loads(address))["tls_ca_pem"] == authority.read_text()
    for shown in (text, output, lab.log.read_text(errors="replace")):
        assert secret not in shown
        assert "PRIVATE KEY" not in shown

    (tmp_path / "other").mkdir()
    executions = query(db / "part-0.sqlite3", "SELECT count(*) FROM exs")
    others = make_certificates(tmp_path / "other", addresses=("10.0.0.1",))
    run = lab.run("cluster.py:counts(2000, 3)", db, "-s", "0", *files[:-1], others[2])
    assert run.wait() == 48
    run = lab.run("cluster.py:counts(2000, 3)", db, "-s", "0", "--tls-cert", others[0], "--tls-key", others[1])
    assert run.wait() == 48
    assert f"not valid for '{lab.network.driver.address}'" in run.text()
    assert query(db / "part-0.sqlite3", "SELECT count(*) FROM exs") == executions

    output = lab.python("cluster_session.py", db, "read", 3, 2, certificate, certificate).succeed()
    assert len(re.findall("^state ", output, re.MULTILINE)) == len(truth(6000))
    run = lab.python("cluster_session.py", db, "read", 3, 2, *others[:2])
    assert run.wait() != 0
    assert "would not accept the certificate" in run.text()
