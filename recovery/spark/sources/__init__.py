"""Data sources of Spark: `appended`, `recovery`, native state."""
