"""What a run measures while it goes on: counters, memory, Prometheus' text and the endpoint that serves it."""
