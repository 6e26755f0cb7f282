"""The owners of partitions on other hosts, as a table of the page."""

from __future__ import annotations

from recovery.report.facts import Facts
from recovery.report.html import section
from recovery.report.text import escaped


def owners_section(facts: Facts) -> str:
    """Return what each owner that was asked says of itself; nothing without owners."""
    if not facts.owners:
        return ""
    lead = "What the owners of the partitions say of themselves. Counts are since each service began."
    cells = [each.cells() for each in facts.owners]
    header = "".join(f'<th class="n">{escaped(name)}</th>' for name in list(cells[0])[1:])
    rows = "".join(
        f'<tr><td class="name"><code>{escaped(each.location)}</code></td>'
        f"{''.join(f'<td class=n>{escaped(text)}</td>' for text in list(row.values())[1:])}</tr>"
        for each, row in zip(facts.owners, cells, strict=True)
    )
    table = f'<div class="table"><table><tr><th>owner</th>{header}</tr>{rows}</table></div>'
    return section("Owners", lead, table)
