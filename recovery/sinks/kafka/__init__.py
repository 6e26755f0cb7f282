"""KafkaSink: the protocol (sink), rows as records (rows, staged), what was produced (marker), the broker (reasons)."""
