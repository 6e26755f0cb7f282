"""Nodes of the JVM's plans, logical and physical ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


def walk(node: Any) -> Iterator[Any]:
    """The nodes of a plan, each before its children."""
    yield node
    for child in children(node):
        yield from walk(child)


def children(node: Any) -> list[Any]:
    """The nodes right below."""
    found = node.children()
    return [found.apply(index) for index in range(found.length())]


def with_children(jvm: Any, node: Any, others: Sequence[Any]) -> Any:
    """The node with others right below it."""
    return node.withNewChildren(seq(jvm, others))


def seq(jvm: Any, objects: Sequence[Any]) -> Any:
    """Objects of the JVM as a sequence of Scala's."""
    made = jvm.java.util.ArrayList()
    for each in objects:
        made.add(each)
    return jvm.org.apache.spark.api.python.PythonUtils.toSeq(made)
