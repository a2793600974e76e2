"""CSV rows of the table that compares Headgate with Spark."""

import bz2
import gzip

import pyarrow as pa
from spark_table import Case

# Sentences of docs/files-differences.md.
BY_NAME = "With a header, columns are found by name"
MISSING_IN_HEADER = "A header that lacks a column of the schema is an error"
SCHEMA_AS_GIVEN = "A given schema is the schema of the DataFrame"
TIME_ONLY = "A time without a date is not a timestamp"
BAD_PATTERN = "A pattern that cannot be used is an error"
BLANK_FIRST_VALUE = "Blanks before a separator with `ignoreTrailingWhiteSpace` alone"
NO_COLUMNS = "Input in which no column is found is an error"
UNKNOWN_MODE = "An unknown mode is an error"

ALL_TYPES = (
    "b BYTE, s SHORT, i INT, l LONG, f FLOAT, d DOUBLE, e DECIMAL(10,2), o BOOLEAN, t STRING, y BINARY, "
    "a DATE, p TIMESTAMP, n TIMESTAMP_NTZ"
)
CORRUPT = "a INT, b STRING, _corrupt_record STRING"


def csv(
    name: str,
    content: bytes | dict[str, bytes],
    schema: str | None = None,
    difference: str | None = None,
    case_sensitive: bool = False,
    **options: str,
) -> Case:
    files = content if isinstance(content, dict) else {"part-0.csv": content}
    return Case(name, "csv", files, options, schema, difference, case_sensitive)


def column(kind: str, *cells: str) -> tuple[bytes, str]:
    """Return a file whose second column holds the cells, and its schema."""
    return "".join(f"{index},{cell}\n" for index, cell in enumerate(cells)).encode(), f"k INT, v {kind}"


def cells(name: str, kind: str, *values: str, difference: str | None = None, **options: str) -> Case:
    content, schema = column(kind, *values)
    return csv(name, content, schema, difference, **options)


def each_cell(name: str, kind: str, *values: str, **options: str) -> Case:
    """One file per cell, so that each is a block of its own and takes the fast way if it can."""
    files = {f"part-{index}.csv": f"{index},{value}\n".encode() for index, value in enumerate(values)}
    return csv(name, files, f"k INT, v {kind}", **options)


INTS = ("1", "-1", "+1", "007", "-0", " 1", "1 ", "\t1", "0x1F", "1e3", "1.0", "", "x", "--1", "-", "2147483647",
        "2147483648", "-2147483648", "-2147483649", "127", "128", "-129", "32768", "9223372036854775807",
        "9223372036854775808", "\u0661\u0662", "1_000", "1L", '"5"', '" 5"', '"1,000"')  # fmt: skip
DOUBLES = ("1", "-1.5", "+1.5", "1.", ".5", "1e5", "1E-5", "1e400", "-1e400", "1e-400", "nan", "NaN", "inf", "Inf",
           "-Inf", "Infinity", "-Infinity", "+Infinity", "+Inf", "1d", "1f", "1D", "0x1p3", "0x1.8p1d", "1e", "-", " 1",
           "1 ", "3.4028235e38", "3.5e38", "0.1", "16777217", "1.00000017881393432617187499", "x", "", "-0.0",
           "1_0", '"1,5"')  # fmt: skip
BOOLEANS = ("true", "false", "TRUE", "False", "tRuE", "1", "0", "yes", "t", " true", "true ", "", '"true"')
DECIMALS = ("1", "1.5", "-1.25", "+1", "1.005", "1.004", "-1.005", "12345678.99", "12345678.995", "99999999.994",
            "99999999.995", "123456789", "1e3", "1E-2", "1e20", ".5", "5.", " 1", "1 ", "x", "", "0x1", "1e1000",
            "1e-1000", '"1,000.5"', "NaN", "1d", "0.000", "0e50")  # fmt: skip
DATES = ("2023-01-15", "2024-02-29", "2023-02-29", "2023-1-5", "2023-01", "2023", "2023-01-15T10:00:00",
         "2023-01-15 10:00", " 2023-01-15", "2023-01-15 ", "20230115", "15/01/2023", "0001-01-01", "0000-01-01",
         "1582-10-10", "9999-12-31", "12023-01-15", "+12023-01-15", "-0044-03-15", "2023-13-01", "2023-00-10", "", "x",
         "2023-01-15x", "2023-01-15Tx", "1/1/2023", "1970-01-01", "GMT", "2023-01-15T00:00GMT")  # fmt: skip
DATES_PYTHON_HOLDS = tuple(date for date in DATES if not date.lstrip("+").startswith(("0000", "12023", "-")))
TIMESTAMPS = ("2023-01-15 10:20:30", "2023-01-15T10:20:30", "2023-01-15 10:20:30.1", "2023-01-15 10:20:30.123456",
              "2023-01-15 10:20:30.123456789", "2023-01-15 10:20", "2023-01-15 10", "2023-01-15", "2023-01", "2023",
              "2023-1-5 1:2:3", "2023-01-15T10:20:30Z", "2023-01-15T10:20:30+01:00", "2023-01-15T10:20:30+0100",
              "2023-01-15T10:20:30+01", "2023-01-15T10:20:30 +01:00", "2023-01-15T10:20:30 Europe/Paris",
              "2023-01-15T10:20:30UTC", "2023-01-15T10:20:30-7:00", "2023-01-15T10:20Z", "2023-01-15T10Z",
              "2023-01-15T10:20:30PST", "2023-01-15T10:20:30GMT+2", "2023-01-15T10:20:30+19:00",
              "2023-01-15T10:20:30+18:00", "2023-01-15T10:20:30+000", "2023-01-15T10:20:30-018",
              "2023-01-15T10:20:30+00000", "2023-01-15T10:20:30+010203", "2023-01-15T10:20:30+01:0203",
              "2023-01-15T10:20:30UTC+123", "2023-01-15T10:20:30+1",
              "2023-01-15 24:00:00", "2023-01-15 10:60:00", "2023-01-15 10:20:60",
              "2023-02-30 10:20:30", " 2023-01-15 10:20:30", "2023-01-15 10:20:30 ", "20230115", "2023-01-15 102030",
              "2023-01-15t10:20:30", "2023-01-15 10:20:30.", "2023-01-15 10:20:30,5", "", "x", "1673777000",
              "2023-01-15 10:20:30 Nowhere/City", "2023-01-15T10:20:30z", "1500-01-01 00:00:00",
              "0002-01-01 00:00:00", "9999-12-31 10:00:00", "2023-03-12 02:30:00",
              "2023-11-05 01:30:00")  # fmt: skip

MARK = b"\xef\xbb\xbf"
WITH_ENDS = {
    f"{number}.csv": content
    for number, content in enumerate([
        b"x\n", b"x,y\n", b"x,\n", b"\n,y", b"\n\n,y\nz", b"x\n,y", b"x,y\r\n", b"x,y\r", b"x,y\n\n", b"x,\n\n",
        b"x,y\nz", b"x,y,z\n", b"\n", b'x,"y"\n', b'x,"y\n', b"x, \n", b"x,\r", b"x,y \n", b" \n", b"x,y\x00z,w",
        b'"x\ny",z', b'"x\n"\n,z', b'x,"y"\nz', b'x,"y" \n', b'x,"y\nz"\n', b"x,\n,z", b'x,"a"\n"b"', b'"a"\n,b',
        b'"a"\nc,b', b'"a" \n ,b', b"x,y\r\n\n", b"x,y,z\r\n", b"x,y,z\r", b"x,\\\n", b'x,"a""\n"', b"x\ny,z\nw",
        b"1\n,2~~\n3,4",
    ])
}  # fmt: skip
"""Files in which lines end otherwise than ``lineSep`` says."""

CASES = [
    # Lines, headers, files
    csv("strings without header", b"1,a\n2,b\n"),
    csv("strings with header", b"id,name\n1,a\n2,b\n", header="true"),
    csv("carriage return and newline", b"id,name\r\n1,a\r\n2,b\r\n", header="true"),
    csv("carriage return alone", b"1,a\r2,b\r3,c", "a INT, b STRING"),
    csv("mixed line ends", b"1,a\r\n2,b\n3,c\r4,d", "a INT, b STRING"),
    csv("no end of the last line", b"1,a\n2,b", "a INT, b STRING"),
    csv("byte order mark", b"\xef\xbb\xbf1,a\n2,b\n", "a INT, b STRING"),
    csv("byte order marks within a file", b"1,a\n\xef\xbb\xbf2,b\r\n\xef\xbb\xbfx,c\n", CORRUPT),
    csv("byte order mark after blank lines", {
        "a.csv": b"\n" + MARK + b'"', "b.csv": b" \r\n\n" + MARK + b'"a",b\n' + MARK + b"x,y,z\n",
        "c.csv": b"u,v\n" + MARK + b"x", "d.csv": b"\n" + MARK + MARK + b"x",
    }, "a STRING, b STRING, _corrupt_record STRING"),
    csv("byte order mark after a comment", b"#c\n" + MARK + b"1,y,z\n2,u\n", CORRUPT, comment="#"),
    csv("byte order mark after blank lines, inferred", b"\n" + MARK + b"1,2\n3,4\n", inferSchema="true"),
    csv("line ends that lineSep is not", WITH_ENDS, "a STRING, b STRING, _corrupt_record STRING", lineSep=";"),
    csv("line ends that lineSep of two characters is not", WITH_ENDS, "a STRING, b STRING, _corrupt_record STRING",
        lineSep="~~"),
    csv("line ends that lineSep is not, trimmed", WITH_ENDS, "a STRING, b STRING", lineSep="~~",
        ignoreTrailingWhiteSpace="true", ignoreLeadingWhiteSpace="true"),
    csv("line ends that lineSep is not, of numbers", b"1,2\n;;3\n;;x,y\n;;1,2,3\n;;4,\n",
        "a INT, b INT, _corrupt_record STRING", lineSep=";;"),
    csv("line ends that lineSep is not, inferred", b"a,b\n;;1,2\n;;3\n", header="true", inferSchema="true",
        lineSep=";;"),
    csv("nothing but a byte order mark", b"\xef\xbb\xbf", difference=NO_COLUMNS),
    csv("byte order mark before header", b"\xef\xbb\xbfid,name\n1,a\n", header="true"),
    csv("empty file beside others", {"a.csv": b"", "b.csv": b"1,x\n"}, "a INT, b STRING"),
    csv("only empty files", {"a.csv": b""}, "a INT, b STRING"),
    csv("header without rows", b"a,b\n", "a INT, b STRING", header="true"),
    csv("blank lines", b"\n1,a\n\n  \n\t\n2,b\n\n", "a INT, b STRING"),
    csv("blank lines in one column", b"a\n\n  \n\t\n b\n", "a STRING"),
    csv("one column of numbers and blank lines", b"1\n\n  \n2\n", "a INT"),
    csv("blank lines with tabs as separators", b"\t\n1\ta\n\t\n \t \n2\tb\n", "a INT, b STRING", sep="\t"),
    csv("header in every file", {"a.csv": b"a,b\n1,x\n", "b.csv": b"a,b\n2,y\n"}, "a INT, b STRING", header="true"),
    csv("blank lines and comments before header", b"\n# hi\na,b\n1,x\n", header="true", comment="#"),
    csv("gzip", {"a.csv.gz": gzip.compress(b"1,a\n2,b\n")}, "a INT, b STRING"),
    csv("bzip2", {"a.csv.bz2": bz2.compress(b"1,a\n2,b\n")}, "a INT, b STRING"),
    csv("zstandard", {"a.csv.zst": bytes(pa.compress(b"1,a\n2,b\n", "zstd", asbytes=True))}, "a INT, b STRING"),
    csv("line separator", b"1,a;2,b;3,c\n;", "a INT, b STRING", lineSep=";"),
    csv("line separator newline keeps carriage return", b"1,a\r\n2,b\n", "a INT, b STRING", lineSep="\n"),
    csv("partition folders", {"y=1/a.csv": b"1,a\n", "y=2/a.csv": b"2,b\n"}, "a INT, b STRING, y INT"),
    csv("partition folders, inferred", {"y=1/a.csv": b"1,a\n", "y=2/a.csv": b"2,b\n"}, inferSchema="true"),
    csv("partition folders, not in schema", {"y=1/a.csv": b"1,a\n"}, "a INT, b STRING", SCHEMA_AS_GIVEN),
    # Quotes, escapes, white space, comments
    csv("quoted separators", b'1,"a,b"\n2,"c"\n', "a INT, b STRING"),
    csv("quoted numbers", b'"1","a"\n"2","b"\n', "a INT, b STRING"),
    csv("escaped quotes", b'1,"a\\"b"\n2,"c\\\\"\n3,"d\\e"\n4,f\\"g\n', "a INT, b STRING"),
    csv("doubled quotes", b'1,"a""b"\n2,""""\n3,"x ""y"" z"\n', "a INT, b STRING"),
    csv("doubled quotes as escapes", b'1,"a""b"\n2,""""\n3,"x ""y"", z"\n4,""\n', "a INT, b STRING", escape='"'),
    csv("quotes inside a value", b'1,a"b"c\n2, "x"\n3,5"\n', "a INT, b STRING"),
    csv("text after a quote", b'1,"a"b\n2,"a" b,c\n3,"a" \n4,"a"  ,\n', CORRUPT),
    csv("open quote", b'1,"a\n2,"b,c\n3,"\n4,b\n', "a INT, b STRING"),
    csv("open quote over a line end", b'1,"a\nb"\n2,c\n', CORRUPT),
    csv("unescaped until closing quote", b'1,"a"b"\n2,"a"b,c"\n', CORRUPT,
        unescapedQuoteHandling="STOP_AT_CLOSING_QUOTE"),
    csv("unescaped skips value", b'1,"a"b"\n2,"c"\n', CORRUPT, unescapedQuoteHandling="SKIP_VALUE"),
    csv("unescaped back to delimiter", b'1,"a,b"c"\n2,"c"\n', CORRUPT, unescapedQuoteHandling="BACK_TO_DELIMITER"),
    csv("unescaped raises", b'1,"a"b"\n', CORRUPT, unescapedQuoteHandling="RAISE_ERROR"),
    csv("other quote", b"1,'a,b'\n2,\"c\"\n", "a INT, b STRING", quote="'"),
    csv("no quote", b'1,"a\n2,"c"\n', "a INT, b STRING", quote=""),
    csv("empty quoted values", b'"",""\n1,""\n', "a INT, b STRING"),
    csv("escape of escape", b'1,"a\\#"b"\n2,"c##"\n', CORRUPT, charToEscapeQuoteEscaping="#"),
    csv("tabs", b"1\ta\n2\tb c\n", "a INT, b STRING", sep="\\t"),
    csv("long separator", b'1||a||\n2||"b||c"||x\n3||||\n', "a INT, b STRING, c STRING", sep="||"),
    csv("separator outside ASCII", "1\u00a7a\n2\u00a7b\n".encode(), "a INT, b STRING", sep="\u00a7"),
    csv("delimiter", b"1;a\n2;b\n", "a INT, b STRING", delimiter=";"),
    csv("white space kept", b" 1, a \n2 ,\tb\n", "a STRING, b STRING"),
    csv("white space cut", b" 1 , a \n 2,\tb\t\n3,  \n  ,4\n5,x\n", "a INT, b STRING", ignoreLeadingWhiteSpace="true",
        ignoreTrailingWhiteSpace="true"),
    csv("leading white space cut", b' 1, a \n2, "b" \n', "a STRING, b STRING", ignoreLeadingWhiteSpace="true"),
    csv("trailing white space cut", b'1 ,a \n2," b " \n', "a STRING, b STRING", ignoreTrailingWhiteSpace="true"),
    csv("blank first value, only trailing white space cut", b" ,a\n", "a STRING, b STRING", BLANK_FIRST_VALUE,
        ignoreTrailingWhiteSpace="true"),
    csv("comments", b"# one\n1,a\n #2,b\n3,#c\n#\n", CORRUPT, comment="#"),
    csv("UTF-8", "1,\u00e4\n2,\U0001f600\n".encode(), "a INT, b STRING"),
    csv("bytes that are not UTF-8", b"1,\xff\xfe\n2,b\xc3\n", "a INT, b STRING"),
    csv("binary that is not UTF-8", b"1,\xff\n2,b\n", "a INT, b BINARY"),
    csv("latin-1", "1,\u00e4\n2,b\n".encode("latin-1"), "a INT, b STRING", encoding="ISO-8859-1"),
    csv("charset", "1,\u00e4\n".encode("latin-1"), "a INT, b STRING", charset="iso-8859-1"),
    csv("alias of a charset", b"1,a\n", "a INT, b STRING", encoding="latin1"),
    csv("charset that Spark refuses", "1,\u20ac\n".encode("cp1252"), "a INT, b STRING", charset="windows-1252"),
    csv("UTF-16", "1,\u00e4\n2,b\n".encode("utf-16le"), "a INT, b STRING", encoding="UTF-16LE", lineSep="\n"),
    # Null values and modes
    csv("null value", b'1,NA\nNA,b\n3,\n4,"NA"\n5,""\n', "a INT, b STRING", nullValue="NA"),
    csv("empty value", b'1,""\n2,\n3,x\n', "a INT, b STRING", emptyValue="EMPTY"),
    csv("too few columns", b"1,a\n2\n3,c\n", CORRUPT),
    csv("too many columns", b"1,a\n2,b,x,y\n3,c\n", CORRUPT),
    csv("one separator too many", b"1,a,\n2,b\n", CORRUPT),
    csv("bad cells with corrupt column", b"1,a\nx,b\n3,c\n", CORRUPT),
    csv("bad cells without corrupt column", b"1,a\nx,b\n3,c\n2\n4,d,e\n", "a INT, b STRING"),
    csv("corrupt column first and named", b'1,a\n"x","b"\n', "bad STRING, a INT, b STRING",
        columnNameOfCorruptRecord="bad"),
    csv("drop malformed", b"1,a\nx,b\n3\n4,d\n5,e,f\n", "a INT, b STRING", mode="DROPMALFORMED"),
    csv("fail fast, bad cell", b"1,a\nx,b\n", "a INT, b STRING", mode="FAILFAST"),
    csv("fail fast, too many columns", b"1,a\n2,b,c\n", "a INT, b STRING", mode="FAILFAST"),
    csv("fail fast, nothing wrong", b"1,a\n2,b\n", "a INT, b STRING", mode="FAILFAST"),
    csv("mode in lower case", b"1,a\nx,b\n", "a INT, b STRING", mode="dropmalformed"),
    csv("unknown mode", b"1,a\nx,b\n", "a INT, b STRING", UNKNOWN_MODE, mode="LENIENT"),
    csv("too many columns for maxColumns", b"1,2,3,4\n", "a INT, b STRING", maxColumns="3"),
    # Types
    csv("all types", b"1,2,3,4,1.5,2.5,3.25,true,x,y,2023-01-15,2023-01-15 10:20:30,2023-01-15 10:20:30.5\n"
        b",,,,,,,,,,,,\n", ALL_TYPES),
    *(cells(f"cells {kind}", kind, *INTS) for kind in ("BYTE", "SHORT", "INT", "LONG")),
    *(each_cell(f"single cells {kind}", kind, *INTS) for kind in ("INT", "LONG")),
    *(cells(f"cells {kind}", kind, *DOUBLES) for kind in ("FLOAT", "DOUBLE")),
    each_cell("single cells DOUBLE", "DOUBLE", *DOUBLES),
    cells("named specials", "DOUBLE", "none", "plus", "minus", "NaN", "Inf", nanValue="none", positiveInf="plus",
          negativeInf="minus"),
    cells("cells BOOLEAN", "BOOLEAN", *BOOLEANS),
    each_cell("single cells BOOLEAN", "BOOLEAN", *BOOLEANS),
    *(cells(f"cells {kind}", kind, *DECIMALS) for kind in ("DECIMAL(10,2)", "DECIMAL(38,18)", "DECIMAL(5,0)",
                                                           "DECIMAL(3,3)")),
    # Each of the last two takes Spark a second: it writes all digits.
    each_cell("single cells DECIMAL", "DECIMAL(10,2)", *DECIMALS, "1e1000000", "1e-1000000"),
    cells("cells DATE", "DATE", *DATES_PYTHON_HOLDS),
    each_cell("single cells DATE", "DATE", *DATES_PYTHON_HOLDS),
    cells("cells TIMESTAMP", "TIMESTAMP", *TIMESTAMPS),
    each_cell("single cells TIMESTAMP", "TIMESTAMP", *TIMESTAMPS),
    cells("cells TIMESTAMP_NTZ", "TIMESTAMP_NTZ", *TIMESTAMPS),
    each_cell("single cells TIMESTAMP_NTZ", "TIMESTAMP_NTZ", *TIMESTAMPS),
    cells("time without date", "TIMESTAMP", "10:20:30", difference=TIME_ONLY),
    cells("cells BINARY", "BINARY", "x", "", "\u00e4", '"a,b"'),
    cells("daylight saving gap and overlap", "TIMESTAMP", "2023-03-26 02:30:00", "2023-10-29 02:30:00",
          "2023-07-01 12:00:00", "1900-01-01 00:00:00", timeZone="Europe/Berlin"),
    cells("zone as offset", "TIMESTAMP", "2023-03-26 02:30:00", timeZone="+05:30"),
    cells("zone as GMT offset", "TIMESTAMP", "2023-03-26 02:30:00", timeZone="GMT-8"),
    # Patterns
    cells("date pattern", "DATE", "15/01/2023", "1/2/2023", "2023-01-15", "31/02/2023", "", dateFormat="dd/MM/yyyy"),
    cells("date pattern with fallback", "DATE", "15/01/2023", "2023-01-15", dateFormat="dd/MM/yyyy",
          enableDateTimeParsingFallback="true"),
    cells("short date pattern", "DATE", "1/2/23", "01/02/99", "11/12/2023", dateFormat="d/M/yy"),
    cells("date pattern without separators", "DATE", "20230115", "2023015", dateFormat="yyyyMMdd"),
    cells("date pattern with names", "DATE", "15 Jan 2023", "Jan 15 2023", "15 january 2023", "15 JAN 2023",
          dateFormat="d MMM yyyy"),
    cells("date pattern with weekday", "DATE", "Sun 15 January 2023", "Mon 15 January 2023",
          dateFormat="EEE d MMMM yyyy"),
    cells("timestamp pattern", "TIMESTAMP", "15.01.2023 10:20", "15.01.2023 25:20", "2023-01-15 10:20:30",
          timestampFormat="dd.MM.yyyy HH:mm"),
    cells("timestamp pattern with zone", "TIMESTAMP", "2023-01-15T10:20:30.5+01:00", "2023-01-15T10:20:30Z",
          "2023-01-15T10:20:30", "2023-01-15T10:20:30.123Z",
          timestampFormat="yyyy-MM-dd'T'HH:mm:ss[.SSS][XXX]"),
    cells("timestamp pattern without separators", "TIMESTAMP", "20230115102030123", "202301151020301",
          timestampFormat="yyyyMMddHHmmssSSS"),
    cells("timestamp pattern with optional time", "TIMESTAMP", "2023-01-15", "2023-01-15 10:20", "2023-01-15 1:20",
          timestampFormat="yyyy-MM-dd[ HH:mm]"),
    cells("quotes in a pattern", "TIMESTAMP", "2023-01-15 at 10 o'clock",
          timestampFormat="yyyy-MM-dd 'at' H 'o''clock'"),
    cells("day of year", "DATE", "2023-045", "2023-366", "2024-366", dateFormat="yyyy-DDD"),
    cells("timestamp pattern of hours from one", "TIMESTAMP", "2023-01-15 24", "2023-01-15 1", "2023-01-15 0",
          timestampFormat="yyyy-MM-dd k"),
    cells("offset patterns", "TIMESTAMP", "2023-01-15 10 +0100", "2023-01-15 10 Z", "2023-01-15 10 +01:00",
          "2023-01-15 10 +01", timestampFormat="yyyy-MM-dd HH X"),
    cells("offset pattern Z", "TIMESTAMP", "2023-01-15 10 +0100", "2023-01-15 10 Z", timestampFormat="yyyy-MM-dd HH Z"),
    cells("long years", "DATE", "02023-01-15", "2023-01-15", "223-01-15", dateFormat="y-MM-dd"),
    cells("timestamp pattern with fallback", "TIMESTAMP", "2023-01-15 10:20:30", "15.01.2023 10:20",
          timestampFormat="dd.MM.yyyy HH:mm", enableDateTimeParsingFallback="true"),
    cells("pattern of nonsense", "DATE", "2023-01-15", difference=BAD_PATTERN, dateFormat="yyyy-MM-dd bbb"),
    cells("pattern with weekday only", "DATE", "Sun", dateFormat="EEE"),
    cells("pattern with numbers of any width", "DATE", "001/2/2023", "1/02/2023", "1/2/02023", dateFormat="d/M/yyyy"),
    cells("timestamp pattern of twelve hours", "TIMESTAMP", "01/15/2023 10:20 PM", "01/15/2023 12:20 AM",
          "01/15/2023 12:20 pm", "01/15/2023 13:20 PM", timestampFormat="MM/dd/yyyy hh:mm a"),
    cells("timestamp pattern with fraction", "TIMESTAMP", "2023-01-15 10:20:30.123", "2023-01-15 10:20:30.1",
          "2023-01-15 10:20:30", "2023-01-15 10:20:30.1234", timestampFormat="yyyy-MM-dd HH:mm:ss.SSS"),
    cells("timestamp pattern with region", "TIMESTAMP", "2023-01-15 10:20 Europe/Paris", "2023-01-15 10:20 X/Y",
          timestampFormat="yyyy-MM-dd HH:mm VV"),
    cells("timestamp without zone, pattern", "TIMESTAMP_NTZ", "15.01.2023 10:20", "2023-01-15 10:20:30",
          timestampNTZFormat="dd.MM.yyyy HH:mm"),
    # Columns
    csv("header in another order", b"b,a\nx,1\n", "a INT, b STRING", BY_NAME, header="true"),
    csv("header lacks a column", b"a,c,d\n1,x,y\n", "a INT, b STRING", MISSING_IN_HEADER, header="true"),
    csv("header names others, as many", b"x,y\n1,a\n", "a INT, b STRING", header="true"),
    csv("header in capitals", b"A,B\n1,a\n", "a INT, b STRING", header="true"),
    csv("header contradicts, enforced", b"x,y\n1,a\n", "a INT, b STRING", header="true", enforceSchema="false"),
    # multiLine
    csv("multiline quoted line ends", b'1,"a\nb"\n2,"c\n\nd"\n3,e\n', "a INT, b STRING", multiLine="true"),
    csv("multiline carriage returns", b'1,"a\r\nb"\r\n2,c\r\n', "a INT, b STRING", multiLine="true"),
    csv("multiline header", b'"a","b\nc"\n1,"x\ny"\n', multiLine="true", header="true"),
    csv("multiline bad records", b'1,"a\nb"\nx,"c\nd"\n3\n', CORRUPT, multiLine="true"),
    csv("multiline white lines", b'1,a\n  \n\n2,b\n', CORRUPT, multiLine="true"),
    csv("multiline open quote", b'1,"a\n2,b\n3,c\n', "a INT, b STRING", multiLine="true"),
    csv("multiline comments", b'#x\n1,"a\n#b"\n#y\n', "a INT, b STRING", multiLine="true", comment="#"),
    csv("multiline gzip", {"a.csv.gz": gzip.compress(b'1,"a\nb"\n')}, "a INT, b STRING", multiLine="true"),
    csv("multiline latin-1", '1,"\u00e4\nb"\n'.encode("latin-1"), "a INT, b STRING", multiLine="true",
        encoding="ISO-8859-1"),
    csv("multiline trailing separator", b'1,\n2,""', "a INT, b STRING", multiLine="true"),
    csv("multiline, as many columns as may be", b"a,b,c\n", "a STRING, b STRING, c STRING", multiLine="true",
        maxColumns="3"),
    csv("multiline, more columns than may be", b"a,b,c\n", "a STRING, b STRING, c STRING", multiLine="true",
        maxColumns="2"),
    # Inference
    csv("inferred types", b"i,l,d,t,e,s,b,z,n\n"
        b"1,3000000000,1.5,2023-01-15 10:20:30,2023-01-15,x,true,2023-01-15T10:20:30Z,\n"
        b"2,1,2,2023-01-16 10:20:30,2023-01-16,1,false,2023-01-15 10:20:30,\n", header="true", inferSchema="true"),
    csv("inferred, widened", b"1,1,2023-01-15,1,true\nx,1.5,2023-01-15 10:20:30,99999999999999999999,1\n",
        inferSchema="true"),
    csv("inferred, timestamp then date", b"2023-01-15 10:20:30\n2023-01-15\n", inferSchema="true"),
    csv("inferred, patterns of date and timestamp", b"15/01/2023\n2023-01-15 10:20:30\n", inferSchema="true",
        dateFormat="dd/MM/yyyy"),
    csv("inferred, decimals", b"12345678901234567890,1,1E5\n1,123456789012345678901234567890,2\n", inferSchema="true"),
    csv("inferred, specials", b"NaN,1,Inf\n1,-Inf,x\n", inferSchema="true"),
    csv("inferred, dates not preferred", b"2023-01-15\n2023-01-16\n", inferSchema="true", preferDate="false"),
    csv("inferred, pattern", b"15/01/2023\n16/01/2023\n", inferSchema="true", dateFormat="dd/MM/yyyy"),
    csv("inferred, null value", b"1,NA\nNA,2.5\n", inferSchema="true", nullValue="NA"),
    csv("inferred, short lines", b"1,2,3\n4\n5,6\n", inferSchema="true"),
    csv("header with gaps and duplicates", b"a,,A,b,b\n1,2,3,4,5\n", header="true"),
    csv("header with names in two cases", b"A,a,b,A\n1,2,3,4\n", header="true"),
    csv("header with names whose case counts", b"A,a,b,A\n1,2,3,4\n", header="true", case_sensitive=True),
    csv("columns in two cases", b"a,A\n1,2\n", "a INT, A STRING", header="true"),
    csv("columns whose case counts", b"a,A\n1,2\n", "a INT, A STRING", header="true", case_sensitive=True),
    csv("header in another case", b"B,A\n1,2\n", "b INT, a INT", header="true", enforceSchema="false"),
    csv("header in another case, which counts", b"B,a\n1,2\n", "b INT, a INT", header="true", enforceSchema="false",
        case_sensitive=True),
    csv("header quoted", b'"a","b,c"\n1,2\n', header="true"),
]  # fmt: skip
