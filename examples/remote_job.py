"""A remote job that is submitted once, whatever crashes: the retry of a task polls the job of the first try.

    python -m recovery init db 1
    python examples/remote_job.py --crash-after submit || echo crashed
    python examples/remote_job.py --crash-after set || echo crashed
    python examples/remote_job.py
    python examples/remote_job.py

The first try dies after it submitted the job and before it could note the job's id, the second after it noted it. The
third waits for the result, and so does the fourth, at once. `jobs/` stands for the remote service: it holds one job.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
import uuid
from pathlib import Path
from typing import Any

from recovery import ScopedState, task_instance_state


class Service:
    """Stands for a remote service: jobs are files. One that is submitted again with the same token is the same job."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(exist_ok=True)

    def submit(self, token: str) -> str:
        """Start a job; returns its id."""
        for path in self._directory.glob("*.json"):
            if json.loads(path.read_text())["token"] == token:
                return path.stem
        job_id = uuid.uuid4().hex[:8]
        done_at = time.time() + 1
        (self._directory / f"{job_id}.json").write_text(json.dumps({"token": token, "done_at": done_at}))
        return job_id

    def result(self, job_id: str) -> str | None:
        """What came of a job, None while it runs."""
        job = json.loads((self._directory / f"{job_id}.json").read_text())
        return f"model of {job['token']}" if time.time() >= job["done_at"] else None


def train(service: Service, state: ScopedState, token: str, crash_after: str | None) -> dict[str, Any]:
    """One try of the task. What it has to remember for the next try is in `state`."""
    job = state.get()
    if job is None:
        job_id = service.submit(token)
        print(f"submitted job {job_id}", flush=True)
        crash_if(crash_after == "submit")
        job = {"id": job_id}
        state.set(job, retention="30d")
        crash_if(crash_after == "set")
    while "result" not in job:
        found = service.result(job["id"])
        if found is None:
            time.sleep(0.1)
        else:
            job = {**job, "result": found}
            state.set(job, retention="30d")
    return job


def crash_if(wanted: bool) -> None:
    """Die without a chance to clean up."""
    if wanted:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--crash-after", choices=["submit", "set"])
    day = "2024-05-01"
    state = task_instance_state("nightly", "train", day, directory="db")
    job = train(Service(Path("jobs")), state, f"nightly/train/{day}", parser.parse_args().crash_after)
    print(f"job {job['id']}: {job['result']}")


if __name__ == "__main__":
    main()
