"""A kit that drives a connector through every promise of the contract, and reports what was kept and what was broken.

Never: import pytest, unless `conformance_test` is called.

>>> import pyarrow as pa
>>> from headgate.source.simple import SimpleSource
>>> class Alphabet(SimpleSource):
...     name = "alphabet"
...     schema = "character string"
...
...     def splits(self):
...         return ["lower", "upper"]
...
...     def read(self, split_id, position):
...         characters = "abc" if split_id == "lower" else "ABC"
...         for index in range(position or 0, 3):
...             yield pa.record_batch({"character": [characters[index]]}), index + 1
>>> report = check(lambda: simple(Alphabet), only=["reads-repeat", "restore-at-every-step"])
>>> print(report)
alphabet: 2 promises checked: 2 kept.
<BLANKLINE>
KEPT  reads-repeat, restore-at-every-step

In a test module, as a test for each promise. Some promises need a function that adds rows, and one that makes the
system unavailable; parameters of all these functions are fixtures::

    test_alphabet = conformance_test(lambda: simple(Alphabet))
    test_journal = conformance_test(lambda path: JournalSource({"path": path}), add_rows=lambda path: append(path, 3))

In a shell, where ``make_source`` of a module makes the source::

    python -m headgate.testing.conformance package.module:make_source

Each promise is one named check: `PROMISES` lists them, with what the kit does to find out and where the contract says
so. Promises that mean nothing for a source do not apply, and the report says why. What is not checked: what the rows
are, and errors for bad input. Those are the connector's own tests, for which `headgate.testing` has harnesses.
"""

from headgate.testing.conformance.in_pytest import conformance_test
from headgate.testing.conformance.kit import PROMISES, check, simple
from headgate.testing.conformance.report import Promise, Report, Result, Verdict

__all__ = ["PROMISES", "Promise", "Report", "Result", "Verdict", "check", "conformance_test", "simple"]
