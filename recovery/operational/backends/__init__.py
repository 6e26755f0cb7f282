"""Where operational state is kept: a directory, or a bucket."""
