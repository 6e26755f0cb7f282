"""State keys as text, for programs that read partitions themselves; the code is in `recovery.values.keys`."""

from recovery.values.keys import decode_key, encode_key, partition_of

__all__ = ["decode_key", "encode_key", "partition_of"]
