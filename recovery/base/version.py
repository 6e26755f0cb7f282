"""The version of this package, also where it is imported from a directory or an archive without metadata."""

VERSION = "0.3.0.dev0"
