"""Starting the JVM, and everything that names its internals."""
