"""Standbys: directories that follow the backups of another one, and take over from it."""
