"""Spark data sources: `appended`, `recovery`, native state."""
