"""The directories of a glob: each once, whatever links lead to it."""

from __future__ import annotations

import pytest

from recovery.appended.directories import matching_directories


def found(root, pattern):
    """Relative to the root, "" for itself."""
    return [path.removeprefix(str(root)).strip("/") for path in matching_directories(f"{root}/{pattern}")]


@pytest.fixture
def logs(tmp_path):
    for name in ("logs/a/b", "logs/.hidden", "elsewhere/deep"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def test_links_in_circles(logs):
    """To the directory itself, to one above, to two that lead to each other, to nothing."""
    for name, target in (("a/up", ".."), ("a/upper", "../.."), ("a/self", "."), ("a/b/top", "/"), ("one", "two"),
                         ("two", "one"), ("gone", "nowhere")):  # fmt: skip
        (logs / "logs" / name).symlink_to(target)
    assert found(logs, "logs/**") == ["logs", "logs/a", "logs/a/b"]
    assert found(logs, "logs/**/**") == ["logs", "logs/a", "logs/a/b"]


def test_links_to_other_directories(logs):
    """They are followed, once: by the directory's own path where it is below anyway."""
    (logs / "elsewhere/back").symlink_to(logs / "logs")
    (logs / "logs/link").symlink_to("../elsewhere")
    (logs / "logs/second").symlink_to("../elsewhere")
    (logs / "logs/alias").symlink_to("a")
    assert found(logs, "logs/**") == ["logs", "logs/a", "logs/a/b", "logs/link", "logs/link/deep"]


def test_patterns_within_a_name(logs):
    """Hidden directories match only a pattern that begins with a dot; files are none."""
    (logs / "logs/file").write_text("")
    assert found(logs, "logs/*") == ["logs/a"]
    assert found(logs, "logs/.h*") == ["logs/.hidden"]
    assert found(logs, "*/[ad]*") == ["elsewhere/deep", "logs/a"]
    assert found(logs, "logs/**/b") == ["logs/a/b"]
    assert found(logs, "nothing/**") == []
