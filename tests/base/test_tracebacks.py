"""What users see of a traceback: what happened first, then their own frames."""

from __future__ import annotations

import json
import re
import traceback

import pytest

from recovery.base.tracebacks import essence, essence_of, headline, sendable

JAVA = (
    "\n\n\tat org.apache.spark.api.python.BasePythonRunner.handle\nCaused by: x: Traceback (most recent call last):\n"
)
SPARK = "\n SQLSTATE: 38000 SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: app"
STEP = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/recovery/spark/worker.py", line 350, in _call
    raise
    ^^^^^
  File "/jobs/flow.py", line 8, in update
    helper()
  [Previous line repeated 3 more times]
  File "/jobs/flow.py", line 3, in helper
    raise RuntimeError("boom")
RuntimeError: boom
and more
in step 'count', key 'bad', micro-batch 0"""


@pytest.mark.parametrize("after", ["", "\n", JAVA, SPARK])
def test_a_traceback_from_a_worker(after):
    """What happened, to what, and where; then the frames of the flow, whatever Java says after it."""
    assert essence(STEP + after).splitlines() == [
        "step 'count', key 'bad', micro-batch 0: RuntimeError: boom (flow.py, line 3)",
        "and more",
        '  File "/jobs/flow.py", line 8, in update',
        "    helper()",
        "  [Previous line repeated 3 more times]",
        '  File "/jobs/flow.py", line 3, in helper',
        '    raise RuntimeError("boom")',
    ]


@pytest.mark.parametrize("place", ["", " line 1 pos 0;"])
@pytest.mark.parametrize("plan", ["", "\n'Project ['x]\n+- Range (0, 3)\n"])
def test_spark_s_plan_is_no_part_of_what_is_wrong(place, plan):
    """A message of its analyser ends with a code and the plan."""

    def fail():
        raise ValueError(f"[NO] There is no `x`. SQLSTATE: 42703;{place}{plan}")

    error = caught(fail)
    assert re.fullmatch(r"ValueError: \[NO\] There is no `x`\. \(test_tracebacks\.py, line \d+\)", headline(error))


def test_where_in_its_sql_something_is_wrong_stays():
    """It is no plan."""
    context = "== SQL (line 1, position 1) ==\nid / 0\n^^^^^^"
    shown = headline(ValueError(f"[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n{context}\n"))
    assert shown.endswith(f"\n{context}")


def test_no_traceback():
    """There is nothing to tell."""
    assert essence("Job aborted") is None
    assert essence("Traceback (most recent call last):\nwithout a frame") is None


def caught(function):
    try:
        function()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def chained():
    try:
        json.loads("{")
    except ValueError:
        raise KeyError("other") from None


def handling():
    try:
        json.loads("{")
    except ValueError:
        raise KeyError("other")  # noqa: B904


def deep(depth=30):
    deep(depth - 1) if depth else json.loads("{")


@pytest.mark.parametrize("function", [chained, handling])
def test_of_a_chain_the_last_error_counts(function):
    """It is the one that was raised."""
    line = function.__code__.co_firstlineno + 4
    assert essence_of(caught(function)).startswith(f"KeyError: 'other' (test_tracebacks.py, line {line})\n")


def test_the_place_is_in_the_users_code():
    """Where it called the library that raised; of deep calls the last frames are shown."""
    error = caught(deep)
    line = deep.__code__.co_firstlineno + 1
    found = essence_of(error)
    assert found.startswith("json.decoder.JSONDecodeError: Expecting property name")
    assert found.splitlines()[0].endswith(f"(test_tracebacks.py, line {line})")
    assert "json/decoder.py" not in found
    assert len(found) < len("".join(traceback.format_exception(error)))
    assert headline(error).endswith(f": line 1 column 2 (char 1) (test_tracebacks.py, line {line})")


def test_a_headline_of_several_lines_and_of_wrong_syntax():
    """The place is where it is seen, and once."""

    def several():
        raise ValueError("one\ntwo")

    line = several.__code__.co_firstlineno + 1
    assert headline(caught(several)) == f"ValueError: one (test_tracebacks.py, line {line})\ntwo"
    wrong = caught(lambda: compile("x = = 1", "flow.py", "exec"))
    assert headline(wrong) == "SyntaxError: invalid syntax (flow.py, line 1)"


def test_a_message_without_end_is_cut():
    """It is to be read, and goes into the run history."""

    def endless():
        raise ValueError("\n".join("x" * 10_000 for _ in range(100)))

    assert len(essence_of(caught(endless))) < 50_000


def test_an_error_without_a_traceback():
    """Its type and its message."""
    assert essence_of(ValueError("no")) == "ValueError: no"


def test_an_error_that_a_worker_can_send():
    """One with a text that is not valid UTF-8 is replaced by one with its traceback, and the same essence; also where
    only its cause or a note has such a text."""
    fine = ValueError("é")
    assert sendable(fine) is fine
    for text in ("\udcff", "a \ud800 b"):
        with pytest.raises(ValueError, match="no") as raised:
            raise ValueError("no") from KeyError(text)
        raised.value.add_note(f"in step 's', key '{text}', micro-batch 0")
        sent = sendable(raised.value)
        assert "".join(traceback.format_exception(sent)).encode()
        escaped = text.encode(errors="backslashreplace").decode()
        assert essence_of(sent) == essence_of(raised.value).replace(text, escaped)
