"""The value of `spark.python.daemon.module` in sessions that were configured before the module moved to `spark.jvm`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("recovery.spark.jvm.daemon", run_name="__main__", alter_sys=True)
