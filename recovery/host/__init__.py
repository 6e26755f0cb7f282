"""Files, processes, signals and sockets of this machine."""
