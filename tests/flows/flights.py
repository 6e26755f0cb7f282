"""The demo's flow over real flights, in small micro-batches that tell when they are done."""

from recovery import Flow
from recovery.demo import flow


def make(path, bytes_per_batch):
    flow.BYTES_PER_BATCH = bytes_per_batch

    def tell(batch, batch_id):
        batch.count()
        print(f"batch {batch_id}", flush=True)

    return Flow("flights", flow.make(path).build, sink=tell)
