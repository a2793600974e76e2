import pyarrow as pa
import pytest

from headgate.formats.csv import OPTIONS, infer_csv_schema
from headgate.source.options import Options

UTC = pa.timestamp("us", "UTC")


def infer(sample: bytes, **options: str) -> list[tuple[str, pa.DataType]]:
    schema = infer_csv_schema(sample, Options.parse("csv", OPTIONS, options))
    return [(field.name, field.type) for field in schema]


def type_of(*values: str, **options: str) -> pa.DataType:
    sample = "".join(f"{value},end\n" for value in values).encode()
    return infer(sample, inferSchema="true", **options)[0][1]


def test_without_inference_all_are_strings():
    assert infer(b"1,x\n") == [("_c0", pa.string()), ("_c1", pa.string())]
    assert infer(b"\n# no\nid,,ID\n1,2,3\n", header="true", comment="#") == [
        ("id0", pa.string()), ("_c1", pa.string()), ("ID2", pa.string()),
    ]  # fmt: skip
    assert infer(b"") == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", "-2"], pa.int32()),
        (["1", "3000000000"], pa.int64()),
        (["1", "", "2"], pa.int32()),
        (["", ""], pa.string()),
        (["1", "1.5"], pa.float64()),
        (["NaN", "Inf"], pa.float64()),
        (["12345678901234567890"], pa.decimal128(20, 0)),
        (["1", "1234567890123456789012"], pa.decimal128(22, 0)),
        (["3000000000", "12345678901234567890"], pa.decimal128(20, 0)),
        (["1" * 39], pa.float64()),
        (["2023-01-15"], pa.date32()),
        (["2023-01-15", "2023-01-15 10:00:00"], UTC),
        (["2023-01-15 10:00:00", "2023-01-15"], UTC),
        (["2023-01-15T10:00:00Z"], UTC),
        (["10:00:00"], pa.string()),
        (["true", "FALSE"], pa.bool_()),
        (["true", "1"], pa.string()),
        (["1", "true"], pa.string()),
        (["2023-01-15", "1"], pa.string()),
    ],
)
def test_types(values: list[str], expected: pa.DataType):
    assert type_of(*values) == expected


def test_options_of_inference():
    assert type_of("2023-01-15", preferDate="false") == UTC
    assert type_of("15/01/2023", dateFormat="dd/MM/yyyy") == pa.date32()
    assert type_of("NA", "5", nullValue="NA") == pa.int32()


def test_the_cut_last_record_of_a_long_document_does_not_count():
    sample = (b'1,"x\ny"\n' * 10_000)[:-3]
    assert infer(sample, inferSchema="true", multiLine="true") == [("_c0", pa.int32()), ("_c1", pa.string())]
    assert infer(b'1,"x\ny"\n' * 10_000 + b"nonsen", inferSchema="true", multiLine="true")[0][1] == pa.int32()
