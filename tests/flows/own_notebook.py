"""The cells of a notebook with a flow: its functions, and its run."""

CELLS = [
    """
import recovery
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false").config(
    "spark.sql.shuffle.partitions", "2").getOrCreate()
PATH, PLACE = %r, %r
""",
    """
STEP = 3

class Total:
    def __init__(self):
        self.n = 0

def grown(n):
    return n + STEP - 2

def add_up(key, rows, state):
    total = Total()
    total.n, sum_ = state.get if state.exists else (0, 0)
    for _ in rows:
        total.n = grown(total.n)
    state.update([total.n, sum_ + sum(row.value for row in rows)])
    yield key, *state.get
""",
    """
lines = spark.readStream.option("maxFilesPerTrigger", 1).text(PATH)
pairs = lines.selectExpr("split(value, ',')[0] AS key", "cast(split(value, ',')[1] AS long) AS value")
step = recovery.stateful("totals", key="key", update=add_up, output="key string, n long, total long")
recovery.init_partitions(PLACE + "/db", 2)
config = recovery.RecoveryConfig(PLACE + "/db", snapshot_interval=0)
query = recovery.start(pairs.transform(step), config, name="totals", trigger="available-now",
                       sink=recovery.FileSink(PLACE + "/out"))
""",
    "query",
    "query.await_termination(); query",
    "query.summary",
    "recovery.run(recovery.Flow('totals', lambda spark: pairs.transform(step)), config, spark=spark).batches",
    "recovery.StateManager(PLACE + '/db'), recovery.FileSink(PLACE + '/out')",
    "spark.stop()",
]
