"""What a run reports: events, measures, metrics beside those of Spark, and its display."""
