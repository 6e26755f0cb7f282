"""The word count of words.py, going on from the state and the position that Bytewax left.

    python -m recovery import bytewax theirs db --rename-step count=count --drop-step out
    python -m recovery run examples/bytewax/go_on.py -r db

It reads the next byte of words.txt, and counts on from Bytewax's totals. Bytewax's directory is only read.
"""

from recovery import ConsoleSink, Flow, stateful_map


def count(total, _word):
    """The mapper of `stateful_map`: Bytewax's, and this package's."""
    total = (total or 0) + 1
    return total, total


def build(spark):
    """One line, one word."""
    lines = spark.readStream.format("appended").option("path", "words.txt").load()
    step = stateful_map("count", key="value", value="value", mapper=count, output="word string, total long")
    return lines.select("value").transform(step)


flow = Flow("words", build, sink=ConsoleSink())
