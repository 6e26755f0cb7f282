"""The function that Spark sends to its workers for a step.

The function is pickled by value and imports nothing of this package before it has checked which version the worker has.
Otherwise a worker without the package, or with another version, would fail somewhere in the unpickling.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

from recovery.base.version import VERSION
from recovery.spark.steps.definition import StepDefinition

Sent = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def sent(definition: StepDefinition, name: str) -> Sent:
    """Return the function for the tasks of a step. name: its name in the plan. Raises what pickling raises.

    In a worker the function raises ExecutorPackageError if the worker has another version of this package, and an
    ImportError that names the host for a module that the worker lacks: the driver knows what that means.
    """
    # By value: the worker unpickles these only after the check.
    pickled, wanted = cloudpickle.dumps(definition), VERSION

    def step(batches: Iterator[Any]) -> Iterator[Any]:
        import pickle
        import socket

        def refuse(found: str, cause: str) -> BaseException:
            # The driver reads the error out of the text of the traceback, so any class of this name will do.
            kind: type[Exception] = type("ExecutorPackageError", (Exception,), {"__module__": "recovery.errors"})
            return kind(
                f"host {socket.gethostname()} {found}\n"
                f"Probable cause: {cause}\n"
                f"What to do: Install the wheel of recovery {wanted}, with what it needs, for the Python of every "
                "executor (docs/deploying.md says how to make the wheel); or send an environment with spark.archives "
                "and PYSPARK_PYTHON. Modules of the flow are sent with --py-files."
            )

        try:
            import recovery

            if recovery.__file__ is None:
                # Any directory of this name is a package to Python, if no other is found.
                raise ModuleNotFoundError("No module named 'recovery'")
            try:
                from recovery.base import version

                here = version.VERSION
            except ImportError:
                here = "an older one"
            if here != wanted:
                raise refuse(
                    f"has another version of the package recovery: {here} ({recovery.__file__}), where {wanted} is "
                    "wanted",
                    "The driver was upgraded and this executor was not, or the reverse.",
                )
            from recovery.spark.tasks.run_tasks import run_step

            definition: Any = pickle.loads(pickled)
            if definition.state_schema is None:
                return run_step(definition, batches)
            from recovery.spark.tasks.arrow_task import ArrowStepTask

            return run_step(definition, batches, ArrowStepTask)
        except ImportError as error:
            error.add_note(f"on host {socket.gethostname()}")
            raise

    step.__name__ = name
    return step
