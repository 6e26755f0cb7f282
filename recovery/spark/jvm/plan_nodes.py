"""Nodes of the JVM's logical and physical plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


def walk(node: Any) -> Iterator[Any]:
    """Yield the nodes of a plan, each before its children."""
    yield node
    for child in children(node):
        yield from walk(child)


def children(node: Any) -> list[Any]:
    """The direct children of a node."""
    found = node.children()
    return [found.apply(index) for index in range(found.length())]


def with_children(jvm: Any, node: Any, others: Sequence[Any]) -> Any:
    """A copy of the node with these direct children."""
    return node.withNewChildren(seq(jvm, others))


def seq(jvm: Any, objects: Sequence[Any]) -> Any:
    """A Scala sequence of these objects of the JVM."""
    made = jvm.java.util.ArrayList()
    for each in objects:
        made.add(each)
    return jvm.org.apache.spark.api.python.PythonUtils.toSeq(made)
