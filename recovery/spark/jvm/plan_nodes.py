"""Nodes of the JVM's logical and physical plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, eq=False, slots=True)
class PlanNode:
    """A node of a plan, read from the JVM once with all nodes below: each question to the JVM is a call of its own, and
    a start asks every node many. handle: the JVM's node. name: the name of the node's kind."""

    handle: Any
    name: str
    children: tuple[PlanNode, ...]

    @classmethod
    def read(cls, handle: Any) -> Self:
        """Read a plan of the JVM; return the node at its top."""
        found = handle.children()
        below = tuple(cls.read(found.apply(index)) for index in range(found.length()))
        return cls(handle, str(handle.nodeName()), below)

    def walk(self) -> Iterator[PlanNode]:
        """Yield this node and those below, each before its children."""
        yield self
        for child in self.children:
            yield from child.walk()

    def with_children(self, jvm: Any, others: Sequence[Any]) -> Any:
        """Return a copy of the JVM's node with these nodes of the JVM as its children; the node itself if they are its
        own."""
        if all(other is child.handle for other, child in zip(others, self.children, strict=True)):
            return self.handle
        return with_children(jvm, self.handle, others)


def with_children(jvm: Any, node: Any, others: Sequence[Any]) -> Any:
    """Return a copy of the JVM's node with these nodes of the JVM as its children."""
    return node.withNewChildren(seq(jvm, others))


def seq(jvm: Any, objects: Sequence[Any]) -> Any:
    """A Scala sequence of these objects of the JVM."""
    made = jvm.java.util.ArrayList()
    for each in objects:
        made.add(each)
    return jvm.org.apache.spark.api.python.PythonUtils.toSeq(made)
