"""Backups of recovery directories, and the way back: on a disk, or in an object store."""
