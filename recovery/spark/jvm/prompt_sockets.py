"""Answers and questions of the JVM that Python gets without a delay.

Py4J sends a text of more than 8 KiB by several writes. Without TCP_NODELAY, which it does not set, the second one waits
for Python's acknowledgement of the first, which the system delays by 40 ms (Nagle's algorithm). So the schema of a wide
table, or the offset of a source with many files, took 44 ms instead of 0.2 each time that Python asked for it.
"""

from __future__ import annotations

import logging
import socket
from typing import Any
from weakref import WeakSet

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import SparkSession

from recovery.spark.jvm.java_sources import new

_prompt: WeakSet[Any] = WeakSet()
"""The gateways of the JVMs that send without delay: later sessions of a process have the same one."""


def install(spark: SparkSession) -> None:
    """Make the JVM of a session that this package made send to this process without delay (PromptSockets.java). A JVM
    that cannot, since its Java or Py4J is another, stays as slow as it is."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    if gateway in _prompt:
        return
    try:
        new(spark, "PromptSockets", [gateway.java_gateway_server], room="jvm")
    except Exception:
        logging.getLogger(__name__).debug("the JVM waits before it sends", exc_info=True)
    else:
        _prompt.add(gateway)


def install_here(gateway: Any) -> None:
    """Make this process answer the questions of a gateway's JVM without delay."""
    ensure_callback_server_started(gateway)
    # Accepted connections inherit the option.
    gateway._callback_server.server_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
