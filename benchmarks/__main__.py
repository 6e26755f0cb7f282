"""`python -m benchmarks NAME`: runs one benchmark of `benchmarks.suite`, shows and keeps what it found."""

from __future__ import annotations

import argparse
import pkgutil
import shlex
import sys
from importlib import import_module
from pathlib import Path

from benchmarks import suite
from benchmarks.harness.report import Report, replace_section

HERE = Path(__file__).resolve().parent
WORK = HERE / ".work"
RESULTS = HERE / "RESULTS.md"


def main(given: list[str] | None = None) -> int:
    """Returns 1 when a contender failed or was wrong."""
    words = sys.argv[1:] if given is None else given
    arguments = parser().parse_args(words)
    arguments.work = WORK
    report: Report = arguments.run(arguments)
    report.command = shlex.join(["python", "-m", "benchmarks", *(w for w in words if w != "--write-results")])
    section = report.text()
    print(f"\n{section}")
    for problem in report.problems:
        print(problem, file=sys.stderr)
    print(f"Kept in {report.save(WORK / 'results').relative_to(HERE.parent)}", file=sys.stderr)
    if arguments.write_results:
        RESULTS.write_text(replace_section(RESULTS.read_text() if RESULTS.exists() else "", section))
    return 1 if report.problems else 0


def parser() -> argparse.ArgumentParser:
    """One subcommand for each module of `benchmarks.suite`."""
    top = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = top.add_subparsers(title="benchmarks", required=True, metavar="NAME")
    for module in pkgutil.iter_modules(suite.__path__):
        benchmark = import_module(f"{suite.__name__}.{module.name}")
        about = (benchmark.__doc__ or "").split("\n\n")[0]
        command = commands.add_parser(module.name, help=" ".join(about.split()), description=benchmark.__doc__)
        benchmark.add_arguments(command)
        command.add_argument("--repeat", type=int, default=3, help="rounds; the median counts (default: 3)")
        command.add_argument("--timeout", type=float, default=3600, help="seconds for one run (default: 3600)")
        command.add_argument("--write-results", action="store_true", help="put the table into benchmarks/RESULTS.md")
        command.add_argument("--keep", action="store_true", help="keep what each run left in benchmarks/.work/runs")
        command.set_defaults(run=benchmark.run)
    return top


if __name__ == "__main__":
    sys.exit(main())
