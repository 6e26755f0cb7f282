"""`python -m benchmarks NAME`: runs one benchmark of `benchmarks.suite`, `all`, or the `session` that RESULTS.md shows;
shows and keeps what it found."""

from __future__ import annotations

import argparse
import pkgutil
import shlex
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import suite
from benchmarks.harness import machine, pictures
from benchmarks.harness.report import PICTURES, Report, replace_section
from benchmarks.session import Session

HERE = Path(__file__).resolve().parent
WORK = HERE / ".work"
RESULTS = HERE / "RESULTS.md"


def main(given: list[str] | None = None) -> int:
    """Returns 1 when a contender failed or was wrong."""
    words = sys.argv[1:] if given is None else given
    arguments = parser().parse_args(words)
    if arguments.run is None:
        return int(arguments.all(arguments, words))
    if arguments.write_results:
        pictures.check()
    report = measured(words)
    if arguments.write_results:
        section = report.text()
        RESULTS.write_text(replace_section(RESULTS.read_text() if RESULTS.exists() else "", section))
        if report.picture is not None:
            report.picture(HERE / PICTURES / f"{report.file_name}.svg")
    return 1 if report.problems else 0


def measured(words: list[str]) -> Report:
    """Run the command line of one benchmark; show and keep what it found."""
    arguments = parser().parse_args(words)
    arguments.work = WORK
    report: Report = arguments.run(arguments)
    report.command = command_line([word for word in words if word != "--write-results"])
    print(f"\n{report.text()}")
    for problem in report.problems:
        print(problem, file=sys.stderr)
    print(f"Kept in {report.save(WORK / 'results').relative_to(HERE.parent)}", file=sys.stderr)
    return report


def run_all(arguments: argparse.Namespace, words: list[str]) -> int:
    """Every benchmark in every size."""
    return max(main(each) for each in everything(arguments))


def run_session(arguments: argparse.Namespace, words: list[str]) -> int:
    """The tables of RESULTS.md; 1 when one is missing or has a problem."""
    pictures.check()
    results = Path(arguments.results).absolute()
    going = Session(
        WORK / "session.json", results, command_line([w for w in words if w != "--resume"]), machine.commit(), measured
    )
    if arguments.resume:
        going.resume()
    return 1 if going.run(of_session(arguments), arguments.minutes * 60) else 0


def command_line(words: list[str]) -> str:
    """What was typed."""
    return shlex.join(["python", "-m", "benchmarks", *words])


def of_session(arguments: argparse.Namespace) -> list[list[str]]:
    """The command lines of the session, those first that matter most."""
    found = [
        (place, [name, *(benchmark.QUICK if arguments.quick else size), f"--timeout={arguments.timeout:g}"])
        for name, benchmark in benchmarks()
        for place, size in getattr(benchmark, "SESSION", ())
    ]
    lines = [line + (["--repeat=1"] if arguments.quick else []) for _, line in sorted(found, key=lambda each: each[0])]
    # In small, two sizes of a benchmark are the same.
    return [line for number, line in enumerate(lines) if line not in lines[:number]]


def everything(arguments: argparse.Namespace) -> list[list[str]]:
    """The command lines of all benchmarks, each in every size that it is shown in."""
    common = [f"--repeat={arguments.repeat}", f"--timeout={arguments.timeout}"]
    common += ["--write-results"] if arguments.write_results else []
    return [
        [name, *size, *common]
        for name, benchmark in benchmarks()
        for size in ([benchmark.QUICK] if arguments.quick else getattr(benchmark, "SIZES", [()]))
    ]


def benchmarks() -> list[tuple[str, Any]]:
    """The modules of `benchmarks.suite`, by name."""
    found = pkgutil.iter_modules(suite.__path__)
    return [(module.name, import_module(f"{suite.__name__}.{module.name}")) for module in found]


def parser() -> argparse.ArgumentParser:
    """One subcommand for each module of `benchmarks.suite`, and one for all."""
    top = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = top.add_subparsers(title="benchmarks", required=True, metavar="NAME")
    for name, benchmark in benchmarks():
        about = (benchmark.__doc__ or "").split("\n\n")[0]
        command = commands.add_parser(name, help=" ".join(about.split()), description=benchmark.__doc__)
        benchmark.add_arguments(command)
        add_common(command)
        command.add_argument("--keep", action="store_true", help="keep what each run left in benchmarks/.work/runs")
        command.set_defaults(run=benchmark.run)
    command = commands.add_parser("all", help="Every benchmark, one after the other; hours.")
    add_common(command)
    command.add_argument("--quick", action="store_true", help="small sizes, to see that all of it works")
    command.set_defaults(run=None, all=run_all)
    command = commands.add_parser("session", help="The tables of RESULTS.md, in an hour and a half on two slow cores.")
    command.add_argument("--results", default=RESULTS, help="the file to write (default: benchmarks/RESULTS.md)")
    command.add_argument("--resume", action="store_true", help="measure what the last session did not, or failed to")
    command.add_argument("--minutes", type=float, default=90, help="begin no table after so many (default: 90)")
    command.add_argument("--timeout", type=float, default=600, help="seconds for one run (default: 600)")
    command.add_argument("--quick", action="store_true", help="small sizes, to see that all of it works")
    command.set_defaults(run=None, all=run_session)
    return top


def add_common(command: argparse.ArgumentParser) -> None:
    """What every command takes."""
    command.add_argument("--repeat", type=int, default=3, help="rounds; the median counts (default: 3)")
    command.add_argument("--timeout", type=float, default=3600, help="seconds for one run (default: 3600)")
    command.add_argument(
        "--write-results", action="store_true", help="put table and picture into benchmarks/RESULTS.md"
    )


if __name__ == "__main__":
    sys.exit(main())
