"""Places: where copies, documents and leases go. A directory, a mount, a bucket of each kind, or one of Hadoop's.

protocol.py   what every place can do: objects written once, and documents written conditionally
address.py    the one parser of addresses of buckets and file systems
access.py     the credentials that the vendors' own tools would use
secrets.py    what must not be shown, and the one scrubber
failures.py   errors of disks and services as errors of the caller's class
opening.py    from a path or an address to a place
directory.py  a directory of this machine
mounted.py    the same where every call ends, although the disk does not answer
bucket.py     objects in a bucket, through pyarrow
versions.py   what a bucket keeps of objects that were removed or replaced
documents.py  documents in a bucket, through obstore
frames.py     objects of which parts can be read
hadoop.py     the files of one of Hadoop's file systems, through Spark's JVM
"""
