"""KafkaSink: the protocol (sink, production), rows as records (rows, staged), what was produced (marker, reading), what
keys had before (kept), the brokers (client, broker, reasons)."""
