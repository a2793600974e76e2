"""What the session says reaches a source as an option."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.connectors.files.source import FilesSource
from headgate.errors import OptionError
from headgate.spark.continuous.formats import SourceFormat
from headgate.spark.continuous.settings import arrow_schema
from headgate.spark.continuous.sources import _with_case

FILES = SourceFormat(FilesSource, FilesSource.option_specs)


@pytest.fixture
def given(tmp_path):
    pq.write_table(pa.table({"ID": [1]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"id": [2]}), tmp_path / "b.parquet")
    return {"path": str(tmp_path), "fileFormat": "parquet", "mergeSchema": "true"}


def test_a_source_reads_names_as_the_session_says_unless_its_option_does(given):
    schema = pa.schema([("id", pa.int64())])
    assert _with_case(FILES, given, schema, case_sensitive=True) == {**given, "caseSensitive": "true"}
    assert _with_case(FILES, given, schema, case_sensitive=False) == {**given, "caseSensitive": "false"}
    assert _with_case(FILES, {**given, "casesensitive": "false"}, schema, True) == {**given, "casesensitive": "false"}


def test_columns_that_load_inferred_as_one_are_refused_where_the_session_has_two(given):
    inferred = arrow_schema(FilesSource(given).schema())
    with pytest.raises(OptionError, match=r"'caseSensitive' is not set, and spark\.sql\.caseSensitive is true"):
        _with_case(FILES, given, inferred, case_sensitive=True)
    assert _with_case(FILES, given, inferred, case_sensitive=False)["caseSensitive"] == "false"


def test_two_names_are_one_where_the_session_says_so(given):
    schema = pa.schema([("ID", pa.int64()), ("id", pa.int64())])
    assert _with_case(FILES, given, schema, case_sensitive=True) == {**given, "caseSensitive": "true"}
    with pytest.raises(OptionError, match="'ID' and 'id' differ in nothing but case"):
        _with_case(FILES, given, schema, case_sensitive=False)


def test_what_cannot_be_inferred_was_given(tmp_path):
    given = {"path": str(tmp_path / "nothing"), "fileFormat": "json"}
    assert _with_case(FILES, given, pa.schema([("a", pa.int64())]), True) == {**given, "caseSensitive": "true"}
