"""How many rows may go to quarantine before a run fails all the same."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from recovery.errors import ConfigurationError

DEFAULT_ROWS = 1000
_PART = re.compile(r"(?P<share>\d{1,3}(\.\d{1,9})?)\s*%|(?P<rows>\d{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True)
class QuarantineLimit:
    """rows: how many may wait, of all steps together. share: how much of a micro-batch's rows may enter quarantine;
    None: any."""

    rows: int = DEFAULT_ROWS
    share: Fraction | None = None

    def exceeded(self, batch: int, before: int, after: int, entered: int, seen: int) -> str | None:
        """Return a sentence if a micro-batch puts more rows into quarantine than may go there, else None. before,
        after: how many wait. entered: how many have come, while others may have left. seen: how many rows it has."""
        # A micro-batch that makes what waits less is welcome, whatever the limit is.
        if before < after > self.rows:
            return f"{after:,} rows would wait in quarantine after micro-batch {batch}, where {self.rows:,} may"
        # A timeout comes without rows, so there is nothing that its call could be a share of.
        if self.share is not None and seen and entered > self.share * seen:
            share = f"{float(self.share * 100):.12g}%"
            return f"{entered:,} of {seen:,} rows of micro-batch {batch} would enter quarantine, where {share} may"
        return None


def parse_quarantine(given: int | str) -> QuarantineLimit:
    """Return the limit in a number of rows, a share of a micro-batch's rows, as in "1%", or both, as in "1000,1%".

    Raises ConfigurationError for anything else."""
    parts = [] if isinstance(given, bool) else [_PART.fullmatch(part.strip()) for part in str(given).split(",")]
    shares = [Fraction(part["share"]) / 100 for part in parts if part is not None and part["share"] is not None]
    rows = [int(part["rows"]) for part in parts if part is not None and part["rows"] is not None]
    if not parts or None in parts or max(len(rows), len(shares)) > 1 or any(share > 1 for share in shares):
        raise ConfigurationError(
            f"quarantine={given!r:.80} is no limit",
            cause="It is a number of rows, a share of a micro-batch's rows, or both.",
            remedy='Write "1000", "1%" or "1000,1%".',
        )
    return QuarantineLimit(rows[0] if rows else DEFAULT_ROWS, shares[0] if shares else None)
