"""Every error: its place in the tree, its exit code, and what it says."""

from __future__ import annotations

import pickle
import re
import traceback

import pytest
from click.testing import CliRunner
from pyspark.errors import AnalysisException, PySparkException

from recovery import errors
from recovery.cli import main
from recovery.errors import (
    ConfigurationError,
    FlowFailedError,
    HighWaterMarkError,
    InputRewrittenError,
    NoPartitionsError,
    RecoveryError,
    StateValueError,
    StorageError,
    all_errors,
    error_named,
)
from recovery.spark.jvm.errors import as_recovery_error

ALL = list(all_errors())
DRAWN = re.findall(r"^[├└]── (\w+) +(\d+)", errors.__doc__, re.MULTILINE)
# Their cause and remedy depend on the case, so every place that raises them gives its own.
WITHOUT_DEFAULTS = {"RecoveryError", "ConfigurationError", "UnsupportedPlanError", "FlowLoadError"}


def test_the_tree_in_the_docstring_is_the_tree():
    """Every class is drawn with its exit code, in the order of the codes, and nothing else is."""
    assert re.findall(r"^(RecoveryError) +(\d+)", errors.__doc__, re.MULTILINE) == [("RecoveryError", "10")]
    drawn = [(name, int(code)) for name, code in DRAWN]
    assert drawn == [(kind.__name__, kind.exit_code) for kind in ALL[1:]]
    assert [code for _, code in drawn] == sorted(code for _, code in drawn)


def test_every_error_of_the_module_is_in_the_tree():
    """Also indirect subclasses: a class that is not found by `all_errors` would have no exit code of its own."""
    defined = {each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, Exception)}
    assert defined == set(ALL)


def test_exit_codes_are_unique_and_mean_nothing_else():
    """A script can tell what happened: no code twice, none of those of shells and Python."""
    codes = [kind.exit_code for kind in ALL]
    assert len(set(codes)) == len(codes)
    assert set(codes).isdisjoint({0, 1, 2, *range(64, 79), *range(126, 166)})
    assert all(10 <= code < 64 for code in codes)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
class TestEveryError:
    """What all of them have in common."""

    def test_it_says_what_was_found_where_why_and_what_to_do(self, kind):
        """The text holds all four, each on its own line, and the same facts are there for programs."""
        error = kind("something was found", path="/data/db", cause="It happened.", remedy="Do this.")
        assert str(error).splitlines() == [
            "/data/db: something was found", "Probable cause: It happened.", "What to do: Do this."
        ]  # fmt: skip
        assert error.as_json() == {
            "error": kind.__name__, "exit_code": kind.exit_code, "found": "something was found", "path": "/data/db",
            "cause": "It happened.", "remedy": "Do this.",
        }  # fmt: skip

    def test_it_has_a_cause_and_a_remedy_by_default(self, kind):
        """Whoever raises it need not know them, except where they depend on the case."""
        error = kind("found")
        given = bool(error.cause), bool(error.remedy)
        assert given == ((False, False) if kind.__name__ in WITHOUT_DEFAULTS else (True, True))
        assert all(len(text) < 200 for text in (error.cause, error.remedy))

    def test_it_crosses_processes(self, kind):
        """Spark's workers hand errors over pickled: nothing of them is lost."""
        error = kind("found", path="/data/db", cause="", remedy="Do this.")
        back = pickle.loads(pickle.dumps(error))
        assert type(back) is kind
        assert (str(back), back.path, back.cause, back.remedy) == (str(error), "/data/db", "", "Do this.")

    def test_it_can_be_found_by_its_name(self, kind):
        """Errors that reach the driver as text become what they were."""
        assert error_named(kind.__name__) is kind

    def test_its_docstring_is_one_sentence(self, kind):
        """The documentation's list is made of them."""
        first = kind.__doc__.split("\n")[0]
        assert first.endswith(".")
        assert issubclass(kind, RecoveryError)


def test_a_path_is_not_said_twice():
    """When the text names the file already, nothing precedes it."""
    error = StorageError("/data/db/part-0.sqlite3 is full", path="/data/db/part-0.sqlite3", cause="", remedy="")
    assert str(error) == "/data/db/part-0.sqlite3 is full"


@pytest.mark.parametrize("found", ["'db' is full", "db: full", "full: db.", "no (db), no", "db"])
def test_a_path_is_known_wherever_it_stands(found):
    """Quoted, in brackets, or at the end of a sentence."""
    assert str(StorageError(found, path="db", cause="", remedy="")) == found


@pytest.mark.parametrize("found", ["feedback is missing", "/data/db is full", "db.sqlite3 is full", "db/part-0 is full",
                                   "x-db is full", ".db is full"])  # fmt: skip
def test_a_path_that_is_part_of_a_word_is_still_shown(found):
    """A directory called db does not disappear where something else has it in its name."""
    assert str(StorageError(found, path="db", cause="", remedy="")) == f"db: {found}"


def test_a_wrong_setting_is_a_value_error():
    """So that callers who know nothing of this package catch it as one."""
    assert issubclass(ConfigurationError, ValueError)


def test_only_errors_of_storage_sink_and_lease_keep_an_epoch_from_being_closed():
    """After an error of the flow's own code the finished micro-batches are good; after these nothing may be written."""
    barred = {kind.__name__ for kind in ALL if not kind.closes_epoch}
    assert barred == {
        "StorageError", "CorruptPartitionError", "SparkCheckpointError", "LeaseLostError", "SinkFailedError",
        "OutputMismatchError", "FileReplacedError", "OwnerUnreachableError", "TakenOverError", "StaleDirectoryError",
        "SinkRefusedError",
    }  # fmt: skip


def test_names_of_no_error():
    """Other exceptions' names lead to nothing."""
    assert error_named("ValueError") is None
    assert error_named("") is None


def test_errors_of_the_flow_that_are_called_like_ours():
    """Only the class itself is ours; another one of its name is an error of the flow, after which epochs are closed."""
    text = 'Traceback (most recent call last):\n  File "flow.py", line 1, in f\n{}: disk\n\n\tat org.apache.spark'
    own = as_recovery_error(PySparkException(text.format("recovery.errors.StorageError")))
    assert type(own) is StorageError
    for name in ("StorageError", "flow.StorageError"):
        found = as_recovery_error(PySparkException(text.format(name)))
        assert type(found) is FlowFailedError
        assert name in str(found)


@pytest.mark.parametrize(
    "after",
    ["", "\n\n\tat org.apache.spark", "\n SQLSTATE: 38000 SQLSTATE: XXKST\n=== Streaming Query ===\nIdentifier: app",
     " SQLSTATE: 38000", "\n=== Streaming Query ===\nIdentifier: app"],
)  # fmt: skip
def test_an_error_of_ours_is_the_same_when_it_comes_through_spark(after):
    """What Spark says around it is no part of what to do."""
    given = InputRewrittenError("it was cut", path="/logs/a.log")
    text = (
        f'Traceback (most recent call last):\n  File "f.py", line 1, in f\nrecovery.errors.InputRewrittenError: {given}'
    )
    found = as_recovery_error(PySparkException(text + after))
    assert type(found) is InputRewrittenError
    assert str(found) == str(given)


def _inner():
    raise StateValueError("the value", cause="", remedy="Store another one.")


def _named_by_the_step():
    try:
        _inner()
    except StateValueError as error:
        raise StateValueError(f"step 'count', key 'a': {error.found}", cause="", remedy=error.remedy) from error


def _wrapped_in_an_error_of_the_flow():
    try:
        _inner()
    except StateValueError as error:
        raise ValueError("of the flow") from error


def _through_an_error_of_the_flow():
    try:
        _wrapped_in_an_error_of_the_flow()
    except ValueError as error:
        raise StateValueError("step 'count', key 'a': the value", remedy="Store another one.") from error


def _while_cleaning_up():
    try:
        _named_by_the_step()
    finally:
        raise StorageError("the disk is full")


def _with_a_note():
    error = HighWaterMarkError("mark 'orders' would move back", remedy="Give force=True.")
    error.add_note("in step 'count', key 'a', micro-batch 3")
    raise error


@pytest.mark.parametrize(
    ("fails", "kind", "found", "remedy"),
    [
        (_inner, StateValueError, "the value", "Store another one."),
        (_named_by_the_step, StateValueError, "step 'count', key 'a': the value", "Store another one."),
        (_wrapped_in_an_error_of_the_flow, StateValueError, "the value", "Store another one."),
        (_through_an_error_of_the_flow, StateValueError, "step 'count', key 'a': the value", "Store another one."),
        (_while_cleaning_up, StateValueError, "step 'count', key 'a': the value", "Store another one."),
        (_with_a_note, HighWaterMarkError, "step 'count', key 'a', micro-batch 3: mark 'orders' would move back",
         "Give force=True."),
    ],
)  # fmt: skip
@pytest.mark.parametrize("times", [1, 2])
def test_of_nested_errors_the_culprit_is_shown_as_the_outermost_names_it(fails, kind, found, remedy, times):
    """The error that came first, with step and key, which the error that was raised from it adds. Not the error of a
    clean-up that failed after it. Spark repeats the traceback of a task in that of its job."""
    with pytest.raises(Exception) as raised:
        fails()
    task = (
        f"PythonException: {''.join(traceback.format_exception(raised.value))}\n\tat org.apache.spark.X.y(X.scala:1)\n"
    )
    error = as_recovery_error(PySparkException("\nCaused by: ".join([task] * times)))
    assert (type(error), error.found, error.remedy) == (kind, found, remedy)


def test_an_output_mode_that_spark_does_not_take_is_reported_with_those_that_it_does():
    """Most flows that aggregate meet it first."""
    found = as_recovery_error(
        AnalysisException("[STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION] Invalid: append. SQLSTATE: 42KDE")
    )
    assert type(found) is FlowFailedError
    assert 'output_mode="update"' in found.remedy
    assert "SQLSTATE" not in str(found)


def test_debug_shows_where_an_error_came_from_and_says_it_once(tmp_path):
    """The traceback of the whole chain, then the error as without --debug."""
    wrong = tmp_path / "nowhere"
    plain = CliRunner().invoke(main, ["status", str(wrong)])
    debug = CliRunner().invoke(main, ["--debug", "status", str(wrong)])
    assert plain.exit_code == debug.exit_code == NoPartitionsError.exit_code
    assert debug.stderr.startswith("Traceback")
    assert debug.stderr.endswith(plain.stderr)
    assert debug.stderr.count("there is no such directory") == 1 + debug.stderr.count('raise NoPartitionsError("')
