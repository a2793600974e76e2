"""Lets Spark's Python processes import the installed PySpark: each Python imports this module first.

Spark puts an archive of the same modules in front of it, of which every process compiles what it imports. That takes
longer than all else at the start of a stream, which has a process of its own.
"""

import os
import sys

LIB = os.path.join("pyspark", "python", "lib", "")
sys.path[:] = [each for each in sys.path if not (LIB in each and each.endswith(".zip"))]
