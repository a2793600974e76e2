"""docs/files.md says of every option what it is, and which may change on restart."""

import pytest

from headgate.connectors.files.options import FORMAT_OPTIONS, GENERAL_OPTIONS


@pytest.fixture(scope="module")
def rows(repository):
    lines = (repository / "docs/files.md").read_text().splitlines()
    tables = [line.split("|") for line in lines if line.startswith("| `")]
    return {cells[1].strip(" `"): cells for cells in tables}


@pytest.mark.parametrize("spec", GENERAL_OPTIONS, ids=lambda spec: spec.name)
def test_general_options(rows, spec):
    cells = rows[spec.name]
    if spec.status == "supported":
        assert cells[3].strip() == spec.meaning
        assert cells[4].strip() == ("yes" if spec.changeable else "no")
    else:
        assert spec.why in cells[2]


@pytest.mark.parametrize("name", FORMAT_OPTIONS)
def test_options_of_formats(rows, name):
    _, _, supported, fixed, no_ops, rejected, _ = rows[name]
    for spec in FORMAT_OPTIONS[name]:
        cell = {"supported": supported, "no-op": no_ops, "rejected": rejected}[spec.status]
        assert f"`{spec.name}`" in cell
        assert (f"`{spec.name}`" in fixed) == (not spec.changeable)
