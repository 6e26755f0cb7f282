"""Tasks of stateful steps."""
