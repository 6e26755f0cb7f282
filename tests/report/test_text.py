"""Text of keys and names in a page."""

from __future__ import annotations

from recovery.report.text import escaped, format_count, shortened


def test_any_text_is_shown_and_does_nothing():
    """No markup, no control character, no direction mark, no invalid Unicode."""
    assert escaped("<a href=\"x\" id='y'>&") == "&lt;a href=&quot;x&quot; id=&#x27;y&#x27;&gt;&amp;"
    assert escaped("a\0\n\x7f\x85") == "a␀␊␡‹U+0085›"
    assert escaped("\u202eabc\u200b") == "‹U+202E›abc‹U+200B›"
    assert escaped("\ud800") == "\\ud800"
    assert escaped("👩\u200d🔬 é") == "👩\u200d🔬 é"
    assert escaped(None) == "None"


def test_long_text_is_cut():
    assert shortened("abc", 3) == "abc"
    assert shortened("abcd", 3) == "ab…"


def test_counts():
    given = (0, 1234, 999_999, 1_000_000, 2_500_000_000)
    assert [format_count(count) for count in given] == ["0", "1,234", "999,999", "1.0 M", "2.5 G"]
