"""No socket between Python and the JVM waits until an acknowledgement has arrived."""

from __future__ import annotations

import socket
import threading

from recovery.spark.jvm import prompt_sockets


def field(jvm, owner: str, name: str, of):
    """The value of a private field of the JVM's object `of`."""
    found = jvm.java.lang.Class.forName(owner).getDeclaredField(name)
    found.setAccessible(True)
    return found.get(of)


def test_once_in_a_jvm(spark, monkeypatch):
    """A later session of the process finds it done. What fails there leaves the session as it is."""
    gateway, jvm = spark.sparkContext._gateway, spark._jvm
    listeners = len(field(jvm, "py4j.GatewayServer", "listeners", gateway.java_gateway_server))
    prompt_sockets.install(spark)
    assert len(field(jvm, "py4j.GatewayServer", "listeners", gateway.java_gateway_server)) == listeners
    monkeypatch.setattr(prompt_sockets, "_prompt", set())
    monkeypatch.setattr(gateway, "java_gateway_server", jvm.java.lang.Object())
    prompt_sockets.install(spark)
    assert not prompt_sockets._prompt


def test_all_connections_of_a_session(spark):
    """Those that were open before, one of a new thread, and those that the JVM and Python open to call back."""
    gateway, jvm = spark.sparkContext._gateway, spark._jvm
    server = gateway.java_gateway_server
    prompt: list[bool] = []

    def look() -> None:
        prompt.extend(
            each.getSocket().getTcpNoDelay() for each in field(jvm, "py4j.GatewayServer", "connections", server)
        )

    for _ in range(2):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert len(prompt) >= 3
    assert all(prompt)
    prompt_sockets.install_here(gateway)
    here = gateway._callback_server.server_socket
    assert here.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    factory = field(jvm, "py4j.CallbackClient", "socketFactory", server.getCallbackClient())
    opened = factory.createSocket("127.0.0.1", here.getsockname()[1])
    assert opened.getTcpNoDelay()
    opened.close()
