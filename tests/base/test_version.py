"""The version of a build, and what a release refuses."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from recovery.base import version
from tests.stores import ROOT

NAME = ("-c", "user.name=a", "-c", "user.email=a@b")


def git(directory: Path, *words: str) -> str:
    return subprocess.run(
        ["git", *NAME, *words], cwd=directory, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A repository with the module of the version, the script of a release and a changelog."""
    for name in ("recovery/base/version.py", ".ci/release"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n- new\n\n## [0.2.0] - 2026-11-26\n- old\n")
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def built(directory: Path) -> str:
    """The version that a build in a directory asks for."""
    code = "import runpy; print(runpy.run_path('recovery/base/version.py')['version_to_build']())"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=directory, capture_output=True, text=True, check=True
    ).stdout.strip()


def set_version(directory: Path, text: str) -> None:
    path = directory / "recovery/base/version.py"
    path.write_text(path.read_text().replace(f'"{version.VERSION}"', f'"{text}"'))
    git(directory, "commit", "-qam", text)


def test_a_development_version_says_which_one_it_is(checkout):
    set_version(checkout, "9.4.0.dev0")
    for text in ("a", "b"):
        git(checkout, "commit", "-q", "--allow-empty", "-m", text)
    assert built(checkout) == f"9.4.0.dev2+g{git(checkout, 'rev-parse', '--short=7', 'HEAD')}"


def test_a_release_is_what_it_says(checkout):
    set_version(checkout, "9.4.0")
    assert built(checkout) == "9.4.0"


def test_without_a_history(checkout):
    set_version(checkout, "9.4.0.dev0")
    shutil.rmtree(checkout / ".git")
    assert built(checkout) == "9.4.0.dev0"


def test_without_the_whole_history(checkout, tmp_path_factory):
    """The commits since VERSION was set cannot be counted; the newest one is known."""
    set_version(checkout, "9.4.0.dev0")
    for text in ("a", "b", "c"):
        git(checkout, "commit", "-q", "--allow-empty", "-m", text)
    clone = tmp_path_factory.mktemp("shallow") / "clone"
    git(checkout, "clone", "-q", "--depth", "2", checkout.as_uri(), str(clone))
    assert built(clone) == f"9.4.0.dev0+g{git(checkout, 'rev-parse', '--short=7', 'HEAD')}"


@pytest.mark.parametrize(
    ("installed", "expected"),
    [("9.4.0.dev12+g1234567", "9.4.0.dev12+g1234567"), ("9.3.0", "9.4.0.dev0"), (None, "9.4.0.dev0")],
)
def test_the_installed_version(installed, expected, monkeypatch):
    """Metadata of another version of the package does not count: the version of the sources does."""
    from importlib import metadata

    def found(name: str) -> str:
        assert name == "pyspark-recovery"
        if installed is None:
            raise metadata.PackageNotFoundError
        return installed

    monkeypatch.setattr(version, "VERSION", "9.4.0.dev0")
    monkeypatch.setattr(metadata, "version", found)
    assert version.installed_version() == expected


@pytest.mark.parametrize(
    ("number", "change", "words"),
    [
        ("0.3", (), "not of the form 1.2.3"),
        ("0.3.0", ("touch", "new"), "the work tree has changes"),
        ("0.3.0", ("git", "switch", "-qc", "other"), "this is not main"),
        ("0.3.0", ("git", "tag", "v0.3.0"), "the tag v0.3.0 exists"),
        ("0.3.0", ("git", *NAME, "rm", "-q", "--cached", "CHANGELOG.md"), "the work tree has changes"),
    ],
)
def test_a_release_is_refused(number, change, words, checkout):
    if change:
        subprocess.run(change, cwd=checkout, check=True)
    before = git(checkout, "log", "--oneline"), git(checkout, "tag")
    done = subprocess.run([checkout / ".ci/release", number], cwd=checkout, capture_output=True, text=True)
    assert (done.returncode, words in done.stderr) == (1, True), done.stderr
    assert (git(checkout, "log", "--oneline"), git(checkout, "tag")) == before


def test_a_release_without_notes_is_refused(checkout):
    path = checkout / "CHANGELOG.md"
    path.write_text(path.read_text().replace("- new\n", ""))
    git(checkout, "commit", "-qam", "no notes")
    done = subprocess.run([checkout / ".ci/release", "0.3.0"], cwd=checkout, capture_output=True, text=True)
    assert (done.returncode, "nothing under [Unreleased]" in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize("folder", ["recovery", "benchmarks", "examples", "meltano_recovery"])
def test_pip_knows_no_package_of_the_import_name(folder):
    """Code that asks for the version of `recovery` works where nobody has installed the package, and only there."""
    asks = re.compile(r"""(?:version|distribution|metadata|requires)\(["']recovery["']""")
    assert not [path for path in (ROOT / folder).rglob("*.py") if asks.search(path.read_text())]
