"""Measures of an active run: counters, memory, Prometheus' text and the endpoint that serves it."""
