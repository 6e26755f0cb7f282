"""Values that no run writes, for any column of any table."""

from __future__ import annotations

from typing import Any

TABLES = (
    "parts", "exs", "epochs", "commits", "snaps", "superseded", "changes", "logged", "states", "totals", "sizes",
    "measures",
)  # fmt: skip
DEEP = "[" * 200_000 + "]" * 200_000
VALUES: tuple[Any, ...] = (
    0, -1, 1 << 31, 1 << 53, 1 << 62, (1 << 63) - 2, (1 << 63) - 1, -(1 << 63),
    1.5, 1e300, "sql:9e999", None, b"", b"\xff\xfe\x00", "", "x", "0", "\x1b[2J\x1b]0;x\x07\n",
    "sql:CAST(x'ff41' AS TEXT)",
    "../../escaped", "/tmp/escaped", "..", "a/../../escaped", "offsets/99999999999999999999", "sources/0/../../x",
    "metadata#99999", "metadata/x", "state/0/0/1.delta", "x" * 300, "x" * 2_000_000,
    DEEP, '{"a":' * 100_000 + "1" + "}" * 100_000, f'{{"value":{DEEP}}}', "[]", "{}", "null", "1e999", "9" * 5000,
    '{"value":{"$date":"x"}}', '{"orders":{"value":1}}', '[{"source":99999999999999999999}]', '[{"source":-5}]',
    '[["../../escaped","x",null]]', '[["k",{"hex":"zz"},null],[7,8,9]]', "v1\n\n\n\n", "v1",
    '{"execution":1,"epoch":2,"measured_ms":9007199254740993000,"resume_s":0.1}',
    '{"execution":1,"epoch":9007199254740991,"measured_ms":3,"resume_s":-1e15,"rows":-9007199254740991,'
    '"steps":{"\\u001b[2J":[1,-5]},"batch_s":1e15}',
    '{"clock_ms":9007199254740991,"boot":"x","up_ms":-9007199254740991}', '{"key":[[1,2],[3]],"state":{"x":5}}',
)  # fmt: skip
