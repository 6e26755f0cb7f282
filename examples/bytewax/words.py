"""A word count in Bytewax 0.20 or 0.21, with recovery. go_on.py is the same word count here, and goes on from it.

    mkdir theirs && python -m bytewax.recovery theirs 2
    python -m bytewax.run examples/bytewax/words.py -r theirs -s 10 -b 0

words.txt has a word on each line.
"""

import bytewax.operators as op
from bytewax.connectors.files import FileSink, FileSource
from bytewax.dataflow import Dataflow


def count(total, _word):
    """The mapper of `stateful_map`: Bytewax's, and this package's."""
    total = (total or 0) + 1
    return total, total


flow = Dataflow("words")
words = op.input("lines", flow, FileSource("words.txt"))
counted = op.stateful_map("count", op.key_on("word", words, str), count)
op.output("out", op.map("text", counted, lambda pair: (pair[0], f"{pair[0]} {pair[1]}")), FileSink("counts.txt"))
