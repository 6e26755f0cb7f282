"""UpsertSink: a table of a database that has, by key, the rows of the closed epochs."""
