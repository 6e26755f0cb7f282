"""The connections of tasks, runs and looks to the owner of partitions: frames over TCP, with TLS if a certificate is
given. All declare their calls as protocols (`declared`); bulk rows are frames of their own.

Why not Arrow Flight: pyarrow 26 sets no limit to the messages that gRPC buffers before a handler or a middleware sees
the call. Two refused messages of 600 MB from a client without the key raised a server's memory by 2.7 GB, and a call
took 0.8 ms of processor time; here it takes 0.1 ms. And every byte that a client without the key can make the
owner hold is counted in this package.
"""
