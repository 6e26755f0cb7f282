"""A partition as an SQLite file: its tables, how it is opened and read, and how statements run."""
