"""The start of a slot's Python: PySpark with its byte code, and what every slot imports, once for all that are forked.

Never: print: Spark reads a port from the daemon's output. Hide a `sitecustomize` of others; change a process that the
user's code starts.

Spark puts ``pyspark.zip`` on the path, whose modules Python compiles anew in every process (0.6 s of CPU). The same
files lie beside it, with byte code. Its daemon forks the slots: what it has imported they have (0.2 s each).
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from pathlib import Path

_HERE = str(Path(__file__).parent)
_ZIP = os.path.join("python", "lib", "pyspark.zip")


def unzipped(path: str) -> str:
    """Return the folder whose ``pyspark`` is what a ``pyspark.zip`` holds; the zip itself where there is none.

    It is beside the zip in Spark's own distribution, and around it in what pip installs.
    """
    if not path.endswith(os.sep + _ZIP):
        return path
    home = Path(path.removesuffix(_ZIP))
    beside = home.parent if home.name == "pyspark" else home / "python"
    return str(beside) if (beside / "pyspark" / "daemon.py").exists() else path


def _start(module: str) -> None:
    sys.path[:] = dict.fromkeys(map(unzipped, sys.path))
    if module == "pyspark.daemon":
        # Nothing may start a thread before a fork: Spark's daemon imports nothing for this reason.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")
        importlib.import_module("headgate.spark.continuous.slot_task")
        numpy = importlib.import_module("numpy")
        os.register_at_fork(after_in_child=numpy.random.seed)  # else all slots would draw the same numbers
        gc.collect()
        gc.freeze()


def _others() -> None:
    """Run the `sitecustomize` that this one hides."""
    own = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        sys.modules["sitecustomize"] = own
        if error.name != "sitecustomize":
            raise


sys.path.remove(_HERE)
os.environ["PYTHONPATH"] = os.pathsep.join(
    each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each != _HERE
)
_others()
_module = sys.orig_argv[sys.orig_argv.index("-m") + 1] if "-m" in sys.orig_argv else ""
if _module in ("pyspark.daemon", "pyspark.worker"):
    _start(_module)
