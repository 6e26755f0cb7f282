"""What every benchmark needs: child processes, virtual environments, interleaved rounds, tables."""
