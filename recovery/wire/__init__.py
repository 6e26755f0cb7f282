"""The connection between tasks and the owner of the partitions: frames over TCP, with TLS if a certificate is given.

Why not Arrow Flight: pyarrow 26 sets no limit to the messages that gRPC buffers before a handler or a middleware sees
the call. Two refused messages of 600 MB from a client without the key raised a server's memory by 2.7 GB, and a call
took 0.8 ms of processor time where a frame takes a tenth. Here every byte that a client without the key can make the
owner hold is counted in this package.
"""
