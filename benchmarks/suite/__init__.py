"""One benchmark a file: its name is the file's, and it offers `add_arguments(parser)` and `run(args) -> Report`."""
