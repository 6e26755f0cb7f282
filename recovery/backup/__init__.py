"""Back up and restore recovery directories: on a disk, or in an object store."""
