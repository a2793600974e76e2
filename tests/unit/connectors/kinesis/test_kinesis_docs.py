"""docs/kinesis.md says of every option what it is, and of every column its type."""

import pytest

from headgate.connectors.kinesis.columns import SCHEMA
from headgate.connectors.kinesis.options import OPTION_SPECS


@pytest.fixture(scope="module")
def rows(repository):
    lines = (repository / "docs/kinesis.md").read_text().splitlines()
    tables = [[cell.strip() for cell in line.split("|")] for line in lines if line.startswith("| `")]
    return [[cells[1].strip("`"), *cells[2:]] for cells in tables]


@pytest.mark.parametrize("spec", OPTION_SPECS, ids=lambda spec: spec.name)
def test_options(rows, spec):
    cells = ["", *next(row for row in rows if row[0] == spec.name and row[1] != "string")]
    if spec.status == "supported":
        assert cells[3] == spec.meaning
        assert cells[4] == ("yes" if spec.changeable else "no")
    else:
        assert cells[2] == f"{'an error' if spec.status == 'rejected' else 'no effect'}: {spec.why}"


def test_columns(rows):
    for column in SCHEMA.split(", "):
        name, type_name = column.split()
        assert [name, type_name] in [row[:2] for row in rows]
