"""Standbys: directories that follow the backups of another directory, and take over from that directory."""
