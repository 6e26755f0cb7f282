"""Bad records do not stop the flow: they wait in quarantine until the code is fixed, and then count exactly once.

Payments come as lines `account,amount,currency`. Three kinds make the first version of the code fail: an amount with a
comma, a currency without a rate, and a missing amount. With PAYMENTS_FIXED=1 the code takes all of them.

    python -m recovery init payments-db 2
    python examples/bad_records.py payments              # makes some input
    python -m recovery run examples/bad_records.py -r payments-db
    python -m recovery quarantine list payments-db       # what failed, and why
    python -m recovery quarantine show payments-db
    python -m recovery quarantine replay payments-db
    PAYMENTS_FIXED=1 python -m recovery run examples/bad_records.py -r payments-db
"""

import os
import sys
from pathlib import Path

from recovery import FileSink, Flow, stateful

RATES = {"EUR": 100, "USD": 92}
LATER_RATES = {**RATES, "JPY": 1}

LINES = [
    "alice,10,EUR", "bob,5,USD", "carol,7,EUR",
    "alice,2,5,EUR",  # a comma within the amount
    "bob,3,JPY",      # no rate yet
    "carol,,EUR",     # no amount
    "alice,1,EUR", "bob,2,EUR", "dave,4,EUR",
]  # fmt: skip


def cents(text: str, *, fixed: bool) -> int:
    """The amount of a line `account,amount,currency` in cents."""
    _, *amount, currency = text.split(",")
    if fixed:
        number = float(".".join(amount) or 0)
        return round(number * LATER_RATES[currency])
    [whole] = amount
    return int(whole) * RATES[currency]


def add(account, rows, state):
    """Keep the total of an account."""
    fixed = os.environ.get("PAYMENTS_FIXED") == "1"
    total = state.getOption or 0
    for row in rows:
        total += cents(row.line, fixed=fixed)
    state.update(total)
    yield account, total


def build(spark):
    lines = spark.readStream.option("maxFilesPerTrigger", 1).text(os.environ.get("PAYMENTS", "payments"))
    payments = lines.selectExpr("split(value, ',')[0] AS account", "value AS line")
    return payments.transform(
        stateful(
            "totals", key="account", update=add, output="account string, cents long", state=int, on_error="quarantine"
        )
    )


flow = Flow("payments", build, FileSink(os.environ.get("PAYMENTS_OUTPUT", "payments-out")))


def make_input(directory: Path) -> None:
    """Write three files, each one micro-batch."""
    directory.mkdir(parents=True, exist_ok=True)
    for number in range(3):
        path = directory / f"{number}.txt"
        path.write_text("".join(f"{line}\n" for line in LINES[3 * number : 3 * number + 3]))
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


if __name__ == "__main__":
    make_input(Path(sys.argv[1]))
