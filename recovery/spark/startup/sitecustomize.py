"""What Python processes of Spark run first where their PYTHONPATH names this directory: see `spark.jvm.startup`."""

import runpy
import sys
from pathlib import Path

if __name__ == "sitecustomize":
    here = Path(__file__).parent
    sys.path[:] = [each for each in sys.path if Path(each) != here]
    runpy.run_path(str(here.parent / "jvm" / "startup" / "sitecustomize.py"), run_name="sitecustomize")
