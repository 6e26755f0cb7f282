"""Files of settings are read as Java reads them, and as spark-submit takes them."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from recovery import ConfigurationError
from recovery.cli import main
from recovery.host.properties import format_properties, parse_properties, read_properties

TEXT = """# a comment
! another
  spark.a   b c\t
spark.b=1\\
   2
spark.c: x
lone
spark.d a=b:c
k\\ k\\=  v\\\\
spark.e = \\u00e9\\t\\x
spark.f one\\
# no comment, for the line goes on
"""


def test_the_forms_that_java_knows():
    """Separators, comments, lines that go on, escapes; values without blanks around them."""
    assert parse_properties(TEXT) == {
        "spark.a": "b c",
        "spark.b": "12",
        "spark.c": "x",
        "lone": "",
        "spark.d": "a=b:c",
        "k k=": "v\\",
        "spark.e": "é\tx",
        "spark.f": "one# no comment, for the line goes on",
    }


@given(st.dictionaries(st.text(min_size=1), st.text().map(lambda value: value.strip(" \t\f"))))
def test_what_is_written_is_read(settings):
    """Whatever characters a setting has."""
    assert parse_properties(format_properties(settings)) == settings


@pytest.mark.parametrize("content", [None, b"\xff", b"a \\u12"], ids=["none", "no text", "no escape"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, content):
    """With what is wrong."""
    path = tmp_path / "spark.conf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"spark\.conf cannot be read"):
        read_properties(path)


@pytest.fixture
def ran(monkeypatch, tmp_path):
    """Calls the command `run`, and gives the settings that Spark would have had."""
    flow = tmp_path / "flow.py"
    flow.write_text("from recovery import Flow\nflow = Flow('x', lambda spark: None)\n")
    seen = {}

    def run(*_, **options):
        seen.update(options["conf"])
        raise ConfigurationError("far enough")

    monkeypatch.setattr("recovery.spark.run.blocking.run_query", run)

    def call(*options: str, **environment: str) -> dict[str, str]:
        seen.clear()
        done = CliRunner(env=environment).invoke(main, ["run", str(flow), *options])
        assert "far enough" in done.output, done.output
        return dict(seen)

    return call


def test_settings_come_from_the_command_line_the_environment_and_a_file(ran, tmp_path):
    """The former before the latter."""
    file, other = tmp_path / "a.conf", tmp_path / "b.conf"
    file.write_text("spark.a file\nspark.b file\nspark.c file\n")
    other.write_text("spark.a other\n")
    given = ("--conf", "spark.a=line", "--conf", "spark.empty=")
    found = ran("--properties-file", str(file), *given, RECOVERY_CONF="spark.b variable\nspark.a variable")
    assert found == {"spark.a": "line", "spark.b": "variable", "spark.c": "file", "spark.empty": ""}
    assert ran(RECOVERY_PROPERTIES_FILE=str(other)) == {"spark.a": "other"}
    assert ran("--properties-file", str(file), RECOVERY_PROPERTIES_FILE=str(other))["spark.a"] == "file"
    assert ran() == {}


def test_settings_that_cannot_be_read_are_refused(tmp_path):
    """As errors of their own kind, before anything begins."""
    for options, environment, expected in (
        (["--properties-file", str(tmp_path / "none")], {}, "none cannot be read: No such file"),
        ([], {"RECOVERY_CONF": "a \\u1"}, "RECOVERY_CONF cannot be read"),
        (["--conf", "spark.a"], {}, "'spark.a' is not K=V"),
    ):
        done = CliRunner(env=environment).invoke(main, ["run", "flow.py", *options])
        assert done.exit_code not in (0, 1)
        assert expected in done.output
