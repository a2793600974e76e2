"""JSON and text rows of the table that compares Headgate with Spark."""

import gzip

from spark_table import Case

# Sentences of docs/files-differences.md.
MINUS_ZERO = "The number -0 in a column of doubles may be -0.0"
RAW_ENCODED = "Malformed records of files that are not UTF-8 are shown decoded"
FIELD_TWICE = "A field that one object has twice is inferred once"
VARIANT = "Variant columns are not read"
EXPONENT_DECIMAL = "An exponent is inferred as a decimal without a negative scale"

CORRUPT = "a BIGINT, b STRING, _corrupt_record STRING"


def json(
    name: str,
    content: bytes | dict[str, bytes],
    schema: str | None = CORRUPT,
    difference: str | None = None,
    case_sensitive: bool = False,
    **options: str,
) -> Case:
    files = content if isinstance(content, dict) else {"part-0.json": content}
    return Case(name, "json", files, options, schema, difference, case_sensitive)


def cells(name: str, kind: str, *values: str | bytes, difference: str | None = None, **options: str) -> Case:
    """One record per value, in one file and also each in a file of its own, where it may take a faster way."""
    texts = [value if isinstance(value, bytes) else value.encode() for value in values]
    records = [b'{"k":%d,"v":%s,"w":"z"}\n' % (index, text) for index, text in enumerate(texts)]
    files = {f"one-{index}.json": record for index, record in enumerate(records)}
    files["together.json"] = b"".join(records)
    files["unescaped.json"] = b"".join(
        b'{"k":%d,"v":%s,"w":"z"}\n' % (index, text) for index, text in enumerate(texts) if b"\\" not in text
    )
    schema = f"k INT, v {kind}, w STRING, _corrupt_record STRING"
    return json(name, files, schema, difference, **options)


def inferred(
    name: str, *records: str | bytes, difference: str | None = None, case_sensitive: bool = False, **options: str
) -> Case:
    texts = [record if isinstance(record, bytes) else record.encode() for record in records]
    return json(name, b"\n".join(texts) + b"\n", None, difference, case_sensitive, **options)


def text(name: str, content: bytes | dict[str, bytes], schema: str | None = None, **options: str) -> Case:
    files = content if isinstance(content, dict) else {"part-0.txt": content}
    return Case(name, "text", files, options, schema)


INTEGERS = ("1", "-1", "-0", "1.0", "1e3", '"1"', '""', "true", "null", "127", "128", "255", "256", "-129",
            "32767", "32768", "-32769", "2147483648", "9223372036854775807", "9223372036854775808",
            "-9223372036854775809", '{"x":1}', "[1]", "NaN", "007", "-007", "+1", "0x10", "1_0", " 5 ",
            "5.")  # fmt: skip
DOUBLES = ("1", "1.5", "-1.5", "0.1", "-0.0", "1e3", "1E-3", "1e400", "-1e400", "1e-400", "NaN", "Infinity",
           "-Infinity", "+Infinity", "+INF", "-INF", "INF", "Inf", "-Inf", "nan", "inf", '"NaN"', '"Infinity"',
           '"-INF"', '"+INF"', '"INF"', '"1.5"', '""', "5.", ".5", "-.5", "+5", "5.e3", "00.5", "-00.5", "1e",
           "1e+", "0e0", "true", "null", "{}", "3.4028235e38", "3.5e38", "16777217", "12345678901234567890123",
           "1.7976931348623157e308")  # fmt: skip
STRINGS = ('"x"', '""', "5", "1.0", "1e3", "1.50", "true", "null", "NaN", "-Infinity",
           '{"x" : 1 , "y":[1, 2]}', '[1, 2 , "z"]', "{}", "{'x':1}", '{"x":"\\u0041"}', "007", '"a\tb"',
           "'q\"x'", "'it\\'s'", '"it\\\'s"', '"\\u0041\\n\\ud83d\\ude00"', '"\\ud800"', '"\\ude00x"', '"\\q"',
           '"\\u00g0"', '"a\\/b\\\\c\\"d"', b'"\xff"', '"é€😀"', "123456789012345678901234567890.10",
           '"\\u0000"', '"\x7f"', "bad", "tru", "nulls", '"open', "{", "[1", "[1,]", "[,1]")  # fmt: skip
BOOLEANS = ("true", "false", "True", '"true"', "1", "0", "null", '""', "truest")  # fmt: skip
DECIMALS = ("1", "1.5", "-1.25", "1.555", "1.545", "-1.555", "12345678901", "99999999.99", "99999999.995",
            "1e3", "1e20", "1E-2", '"1.5"', '"1,000.5"', '"x"', '""', "true", "null", "NaN", "0.000", '" 1"',
            '"+1"', '".5"', '"5."', "1.0", "1e18", "1000000000000000000", "0.5", "0.999999")  # fmt: skip
DECIMAL_TYPES = ("DECIMAL(5,5)", "DECIMAL(20,4)", "DECIMAL(38,38)")
ERRORS_INSIDE = (
    "[undefined]", "[nul]", "[1,tru,3]", "[1.]", "[1.x]", "[0.]", "[0.,]", "[01]", "[-]", "[-x]", "[1,,2]", "[1 2]",
    "[}", "[1", "[", "undefined", "nul", "1.", "01", "-", "+1", ".5", "", '"x', '"x\\q"', '"\t"', '"\\u12"',
    '{"x":bad}', '{"x":1,}', '{"x" 1}', "{x:1}", '{"x":1', '{"x":[1,bad]}', '{"x":{"y":bad}}', '{"x":"\t"}',
    '[{"x":bad}]', '[{"x":1},bad]', "[[bad]]", "]", "}", '"QQ="', '"Q"', '"QQ=="', '"QQ\\/"',
)  # fmt: skip
"""Errors inside a value: what Spark keeps of the columns around it depends on where its parser stands then."""
KINDS_WITH_ERRORS = (
    "INT", "STRING", "ARRAY<INT>", "STRUCT<x:INT>", "MAP<STRING,INT>", "ARRAY<STRUCT<x:INT>>", "BINARY",
)  # fmt: skip
BINARIES = ('"YWI="', '"YWI"', '""', "5", '"!!"', "null", '"YW I="')  # fmt: skip
DATES = ('"2026-01-02"', '"2026-1-2"', '"2026"', '"2026-01"', "5", "1.5", '"2026-01-02T03:04:05"',
         '" 2026-01-02 "', '"x"', '""', "null", '"2026-02-30"', '"0001-01-01"',
         '"1"', '"-5"', '"+7"', '"20000"', '" 1"', '"12345678901"',
         '"2026 1"', '"2026-01 x"', '"2026-01-02x"', '"2026T"')  # fmt: skip
TIMESTAMPS = ('"2026-01-02"', '"2026-1-2 1:2:3"', '"2026"', '"2026-01-02T03"', '"2026-01-02T03:04"', "5", "-5",
              "1.5", '"2026-01-02T03:04:05.1234567Z"', '"2026-01-02T03:04:05.123456Z"',
              '"2026-01-02 03:04:05 Europe/Paris"', '"2026-01-02T03:04:05+0200"', '"2026-01-02T03:04:05+02"',
              '"2026-01-02T03:04:05+02:30"', '"20260102"', '"2026-01-02T24:00:00"', '"2026-01-02T23:59:60Z"',
              '"2026-01-02T03:04Z"', '"2026-01-02Z"', '""', '"x"', "null", '"2026-03-08 02:30:00"',
              '"2026-11-01 01:30:00"', '" 2026-01-02T03:04:05Z "', "[1]")  # fmt: skip

# Of bytes that are not UTF-8: a surrogate by itself, a byte that begins no character, and one whose others are missing.
ALONE, NO_BYTE, CUT = b"\xed\xa0\x80", b"\xff", b"\xe2\x82"
NO_UTF8 = [
    each.replace(b"@", spoilt)
    for spoilt in (ALONE, ALONE + b"\xed\xb0\x80", NO_BYTE, CUT, b"\xc3", b"\xf0\x9f", b"\xe2(", b"\xf4\x90\x80\x80")
    for each in (
        b'{"g":1,"@e":2,"a":"b"}', b'{"g":1,"a":"x@y","m":{"k":"v"}}', b'{"a":"@","g":1}', b'{"g":1,"z":"@","a":"b"}',
        b'{"g":1,"m":{"@":"y"},"a":"b"}', b'{"g":1,"m":{"k":"@"},"a":"b"}', b'{"g":1,"z":{"y":"@"},"a":"b"}',
        b'{"g":"@","a":"b"}', b"{'g':1,'a':'@'}", b"{'g':1,'z':'@'}", b'{"a":"b","g":1,"z":"@', b'{"a":"\\@","g":1}',
    )
]  # fmt: skip
ESCAPED = [
    each.replace(b"@", spoilt)
    for spoilt in (NO_BYTE, b"\xc3", b"\xc3\xa9", "\u20ac".encode(), "\U0001f600".encode(), ALONE, b"q")
    for each in (b'{"a":"x\\@y","g":1}', b'{"z":"\\@","g":1}', b'{"g":1,"\\@":2,"a":"b"}')
]  # fmt: skip

CASES = [
    *(cells(f"cells-{kind.lower()}", kind, *INTEGERS) for kind in ("BYTE", "SHORT", "INT", "LONG")),
    *(cells(f"cells-{kind.lower()}", kind, *DOUBLES) for kind in ("FLOAT", "DOUBLE")),
    cells("cells-string", "STRING", *STRINGS),
    cells("cells-string-nested-error", "STRING", '{"x":bad}'),
    cells("cells-double-minus-zero", "DOUBLE", "-0", difference=MINUS_ZERO),
    cells("cells-boolean", "BOOLEAN", *BOOLEANS),
    cells("cells-decimal", "DECIMAL(10,2)", *DECIMALS),
    *(cells(f"cells-{kind.lower()}", kind, *DECIMALS) for kind in DECIMAL_TYPES),
    *(cells(f"errors-inside-{kind.lower()}", kind, *ERRORS_INSIDE) for kind in KINDS_WITH_ERRORS),
    cells("cells-decimal-whole", "DECIMAL(38,0)", *DECIMALS),
    cells("cells-binary", "BINARY", *BINARIES),
    cells("cells-binary-incomplete", "BINARY", '"a"'),
    cells("cells-date", "DATE", *DATES),
    cells("cells-timestamp", "TIMESTAMP", *TIMESTAMPS),
    cells("cells-timestamp-ntz", "TIMESTAMP_NTZ", *TIMESTAMPS),
    cells("cells-timestamp-zone", "TIMESTAMP", *TIMESTAMPS, timeZone="Asia/Tokyo"),
    cells(
        "cells-timestamp-format",
        "TIMESTAMP",
        '"02/01/2026 10:00"',
        '"2026-01-02 10:00"',
        "5",
        timestampFormat="dd/MM/yyyy HH:mm",
    ),
    cells("cells-date-format", "DATE", '"02.01.2026"', '"2026-01-02"', "5", dateFormat="dd.MM.yyyy"),
    cells(
        "cells-struct",
        "STRUCT<x:INT,y:STRING,d:DATE>",
        '{"x":1,"y":"q","d":"2026-01-02"}',
        '{"x":"1","y":"q"}',
        '{"x":1,"x":2}',
        '{"z":1}',
        "{}",
        "[]",
        '[{"x":1}]',
        "5",
        '"s"',
        "null",
        '{"y":{"a":1}}',
        '{"X":1}',
    ),
    cells(
        "cells-map",
        "MAP<STRING,INT>",
        '{"p":1,"q":2}',
        '{"p":"z","q":2}',
        '{"p":1,"p":2}',
        "[]",
        "5",
        '{"p":null}',
        "{}",
        "null",
    ),
    cells("cells-array", "ARRAY<INT>", "[1,2]", '[1,"x",3]', "5", "{}", "[null]", "[]", "[[1]]", "null", "[1.5]"),
    cells("cells-array-timestamp", "ARRAY<TIMESTAMP>", '["2026-01-02T03:04:05Z",null]', "[]", "null", '["x"]'),
    cells("cells-array-struct", "ARRAY<STRUCT<x:INT>>", '[{"x":1},{"x":"r"}]', '[{"x":1}]', '{"x":1}', "[5]", "null"),
    cells("cells-map-struct", "MAP<STRING,STRUCT<x:INT>>", '{"p":{"x":1},"q":{"x":"r"}}', '{"p":5}'),
    json(
        "lines-odd",
        {
            f"part-{index}.json": line
            for index, line in enumerate(
                (
                    b'{"a":1,"b":"x"}{"a":2}\n',
                    b'{"a":1} x\n{"a":2}',
                    b'null\n{"a":2}\n',
                    b'5\n"s"\ntrue\n',
                    b'  {"a":1}  \n',
                    b'{"A":1,"a":2}\n',
                    b'{"a":1,"a":2}\n',
                    b'{"a":"x","a":2}\n',
                    b'{"a":2,"a":"x"}\n',
                    b'{"a":2,"a":null}\n',
                    b'{"a":1,\n"b":"x"}\n',
                    b"{}\n",
                    b'{"a":1\n',
                    b'{"a":1,"b":"xy\n',
                    b'{"b":"k","a":1,}\n',
                    b'{"a" 1}\n',
                    b"{a:1}\n",
                    b"{'a':1}\n",
                    b'{"a":1,"b":/*c*/"x"}\n',
                    b'{"a":1}#c\n',
                    b'# c\n{"a":1}\n',
                    b'{"a":9,"_corrupt_record":"user"}\n',
                    b'{"z":[1,2,{"q":3}],"a":1}\n',
                    b'{"z":[1,2,{"q":bad}],"a":1}\n',
                    b'{"a":1,"z":bad}\n',
                    b'{"b":"x","a":"x","q":bad}\n',
                    b'{"a":1}\x00\n',
                    b'{"a":1}\x0b\n',
                    b"nonsense\n",
                    b'\xc2\xa0{"a":1}\n',
                    b'{"a":1,"b":"\xff"}\n',
                    b'{"a":1,"z":"\xff"}\n',
                    b'{"a":1}\xff\n',
                    b'{"":1,"a":1}\n',
                    b'{"a": 1 , "b" : "x" }\n',
                    b'{"a":1,"b":"x"}]\n',
                    b'}{"a":1}\n',
                    b',{"a":1}\n',
                    b'{"a":1} null {"a":2}\n',
                    b'{"a":1,"b":"x"}\n{"a":1,"b":"x","c":"y"}\n{"a":2}\n',
                    b'{"b":"x","a":1}\n{"a":1,"b":"x"}\n',
                    b'{"a":1,"b":"x"}\n{"c":1,"b":"x"}\n',
                    b'{"a":1,"b":"x"}\n{"a":1,"b":"x"]\n',
                    b'{"a":1,"b":"a"b"}\n',
                    b'{"a":1,"b":"x,\\"y"}\n{"a":2,"b":"\\u0078"}\n',
                    b'{"a":1,"b":"x"}\n{"a":null,"b":"y"}\n',
                    b'{"a":1,"b":"x"}\n{"a":2,"b":null}\n',
                    b'{"a":1,"b":5,"c":true}\n{"a":1,"b":6.50,"c":null}\n',
                    b'{"a":1,"c":true}\n{"a":2,"c":1}\n{"a":3,"c":tru}\n',
                    b'{"a":1,"b":"x"}\n{"a" :2,"b":"y"}\n',
                )
            )
        },
    ),
    json(
        "lines-arrays",
        {
            f"part-{index}.json": line
            for index, line in enumerate(
                (
                    b'[{"a":1},{"a":2}]\n',
                    b'[]\n{"a":5}\n',
                    b"[1,2]\n",
                    b'[{"a":1},5]\n',
                    b'[{"a":1},{"a":"x"}]\n',
                    b'[{"a":1},[{"a":2}]]\n',
                    b'[null,{"a":1}]\n',
                    b'[{"a":1}\n',
                    b'[{"a":1},\n',
                    b'[{"a":1},{"a":2\n',
                    b'[{"a":1}{"a":2}]\n',
                    b'[{"a":1}] x\n',
                    b'[[{"a":1}]]\n',
                )
            )
        },
    ),
    json(
        "line-ends",
        {
            "n.json": b'{"a":1}\n{"a":2}\n',
            "rn.json": b'{"a":1}\r\n{"a":2}\r\n',
            "r.json": b'{"a":1}\r{"a":2}\r',
            "none.json": b'{"a":1}\n{"a":2}',
            "mixed.json": b'{"a":1}\r\n{"a":2}\r{"a":3}\n\r{"a":4}',
            "empty.json": b"",
        },
    ),
    json("blank-lines", b'\n   \n\t\n{"a":1}\n\n \r\n{"a":2}\n\n'),
    json(
        "byte-order-mark",
        {"start.json": b'\xef\xbb\xbf{"a":1}\n{"a":2}\n', "inside.json": b'{"a":1}\n\xef\xbb\xbf{"a":2}\n'},
    ),
    json("names-hidden", {"_no.json": b'{"a":1}\n', ".no.json": b'{"a":1}\n', "yes.json": b'{"a":1}\n'}),
    json("gzip", {"part-0.json.gz": gzip.compress(b'{"a":1}\n{"a":2}\nbad\n', mtime=0)}),
    json(
        "many-lines",
        b"".join(b'{"a":%d,"b":"v%d"}\n' % (i, i) if i % 97 else b'{"a":"%d"}\nbad %d\n' % (i, i) for i in range(1000)),
    ),
    json(
        "many-shapes",
        b"".join(
            (b'{"a":%d,"b":"v"}\n', b'{"b":"v","a":%d}\n', b'{"a":%d}\n', b'{"a":%d,"b":5}\n')[i % 4] % i
            for i in range(1000)
        ),
    ),
    *(
        json(f"mode-{mode.lower()}-{name}", content, "a BIGINT, b STRING", mode=mode)
        for mode in ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
        for name, content in (
            ("good", b'{"a":1,"b":"x"}\n'),
            ("bad", b'{"a":1}\nbad\n'),
            ("cell", b'{"a":1}\n{"a":"x"}\n'),
            ("array", b'{"a":1}\n[{"a":2},{"a":"x"}]\n'),
        )
    ),
    json("mode-failfast-good-many", b'{"a":1,"b":"x"}\n' * 100, "a BIGINT, b STRING", mode="FAILFAST"),
    json("mode-dropmalformed-unread", b'{"a":1,"b":"x"}\n{"a":"x","b":"y"}\nbad\n', "b STRING", mode="DROPMALFORMED"),
    json(
        "corrupt-column-named",
        b'{"a":1,"b":"x"}\nbad\n{"a":"x"}\n',
        "a BIGINT, c STRING, b STRING",
        columnNameOfCorruptRecord="c",
    ),
    json("corrupt-column-no-string", b'{"a":1}\n', "a BIGINT, c BIGINT", columnNameOfCorruptRecord="c"),
    json(
        "comments",
        b'{"a":1/*x*/} // y\n# z\n{"a":2}\n// only\n{/*,*/"a"/**/:/* */3}\n{"a":4 /*\n',
        allowComments="true",
    ),
    json(
        "unquoted-names",
        '{a:1,b$_9:2, b:"q"}\n{ü:1,a:2}\n{a-b:1,a:3}\n{a.b:1,a:4}\n{@a:1,a:5}\n{a :6}\n'.encode(),
        allowUnquotedFieldNames="true",
    ),
    json("single-quotes-off", b'{\'a\':1,"b":"x"}\n{"a":2}\n{"b":\'a\'}\n', allowSingleQuotes="false"),
    json("leading-zeros", b'{"a":007,"b":007}\n{"a":-007,"b":00.5}\n{"a":00}\n', allowNumericLeadingZeros="true"),
    json(
        "non-numeric-off",
        b'{"d":NaN,"b":NaN}\n{"d":"NaN"}\n{"d":"Infinity"}\n{"d":1}\n{"x":NaN}\n{"b":"NaN"}\n',
        "d DOUBLE, b STRING, _corrupt_record STRING",
        allowNonNumericNumbers="false",
    ),
    json("any-escape", b'{"b":"\\q\\x41"}\n', allowBackslashEscapingAnyCharacter="true"),
    json("control-characters", b'{"b":"x\ty\x01"}\n{"a":1}\n', allowUnquotedControlChars="true"),
    json("line-separator", b'{"a":1}|{"a":2}|bad|\n{"a":3}|{"a":\n4}', lineSep="|"),
    json("line-separator-long", b'{"a":1}||{"a":2}||bad\n', lineSep="||"),
    json("line-separator-n", b'{"a":1}\n{"a":2}\r\n{"a":3}\r{"a":4}', lineSep="\n"),
    json("encoding-latin1", '{"a":1,"b":"é"}\n{"a":2}\n'.encode("latin1"), encoding="ISO-8859-1", lineSep="\n"),
    json("encoding-utf16le", '{"a":1,"b":"é"}\n{"a":2}\n'.encode("utf-16le"), encoding="UTF-16LE", lineSep="\n"),
    json(
        "encoding-utf16le-bad",
        'bad é\n{"a":2}\n'.encode("utf-16le"),
        CORRUPT,
        RAW_ENCODED,
        encoding="UTF-16LE",
        lineSep="\n",
    ),
    json("encoding-utf16", '{"a":1}\n'.encode("utf-16"), encoding="UTF-16", lineSep="\n"),
    json("encoding-no-separator", b'{"a":1}\n', encoding="ISO-8859-1"),
    json(
        "multi-line",
        {
            f"part-{index}.json": document
            for index, document in enumerate(
                (
                    b'{"a":1,\n"b":"x"}\n',
                    b'[{"a":1},\n{"a":2}]\n',
                    b'{"a":1}\n{"a":2}\n',
                    b'[{"a":1},\n{"a":"x"}]\n',
                    b'[{"a":1},\n{"a":2,]\n',
                    b'{"a":\n',
                    b"",
                    b"  \n",
                    b"[]",
                    b"5",
                    b"null",
                    b'[{"a":1}]\n[{"a":2}]',
                    b'[{"a":1},5]',
                    b'{"a":1} garbage',
                    b'[{"a":1},{"a":2}] garbage',
                    b'\xef\xbb\xbf{"a":1}\n',
                )
            )
        },
        multiLine="true",
    ),
    json(
        "multi-line-drop",
        {"0.json": b'[{"a":1},\n{"a":2,]\n', "1.json": b'[{"a":1},\n{"a":"x"}]\n', "2.json": b'{"a":7}'},
        multiLine="true",
        mode="DROPMALFORMED",
    ),
    json("multi-line-failfast", b'[{"a":1},\n{"a":"x"}]\n', multiLine="true", mode="FAILFAST"),
    json("multi-line-utf16", '[{"a":1},\n{"b":"é"}]\n'.encode("utf-16"), multiLine="true", encoding="UTF-16"),
    json("primitives-as-string-given-schema", b'{"a":1}\n{"a":2}\n', primitivesAsString="true"),
    json("variant", b'{"a":1}\n', None, VARIANT, singleVariantColumn="v"),
    inferred(
        "infer-types", '{"b":1,"a":"x","c":1.5,"d":true,"e":null,"f":"","g":[],"h":{},"i":[null],"j":[[1],[2.5]]}'
    ),
    inferred(
        "infer-widen",
        '{"a":1,"b":1,"c":1,"d":1,"e":[1],"f":{"y":1},"g":[{"y":1}],"h":1.5}',
        '{"a":1.5,"b":"x","c":true,"d":null,"e":[1.5],"f":{"x":"q"},"g":[{"x":"q"}],"h":99999999999999999999}',
    ),
    inferred("infer-conflicts", '{"a":[1],"b":{"y":1},"c":[1,"x"],"d":[[]],"e":[{}]}', '{"a":1,"b":5,"c":{},"d":[[]]}'),
    inferred(
        "infer-big",
        '{"a":9223372036854775808,"b":99999999999999999999,"c":123456789012345678901234567890123456789}',
        '{"a":1,"b":1.5,"c":1}',
    ),
    inferred("infer-big-long", '{"a":99999999999999999999}', '{"a":1}'),
    inferred(
        "infer-prefers-decimal",
        '{"a":1.5,"b":0.001,"c":1.23456789012345678901234567890123456789012,"d":"1.5","e":"x"}',
        '{"a":12,"b":99999999999999999999}',
        prefersDecimal="true",
    ),
    inferred("infer-decimal-exponent", '{"a":1e3}', difference=EXPONENT_DECIMAL, prefersDecimal="true"),
    inferred("infer-decimal-nan", '{"a":1.5}', '{"a":NaN}', prefersDecimal="true"),
    inferred(
        "infer-primitives-as-string",
        '{"a":1,"b":1.5,"c":true,"d":{"x":1},"e":[1,true],"f":null}',
        primitivesAsString="true",
    ),
    inferred(
        "infer-drop-null",
        '{"a":null,"b":[],"c":[null],"d":{},"e":{"x":null},"f":1,"g":[[]],"h":[{}]}',
        dropFieldIfAllNull="true",
    ),
    inferred(
        "infer-timestamp",
        '{"a":"2026-01-01","b":"2026-01-01T01:02:03Z","c":"2026-01-01 01:02:03","d":"x"}',
        inferTimestamp="true",
    ),
    inferred(
        "infer-timestamp-mixed",
        '{"c":"2026-01-01 01:02:03","d":"2026-01-01 01:02:03"}',
        '{"c":"x","d":5}',
        inferTimestamp="true",
    ),
    inferred(
        "infer-timestamp-format",
        '{"a":"2026-01-01","c":"2026-01-01 01:02:03"}',
        inferTimestamp="true",
        timestampFormat="yyyy-MM-dd HH:mm:ss",
    ),
    inferred("infer-corrupt", '{"a":1}', "bad"),
    inferred("infer-corrupt-named", '{"a":1}', "bad", columnNameOfCorruptRecord="zz"),
    inferred("infer-corrupt-taken", '{"_corrupt_record":1,"a":1}', "bad"),
    inferred("infer-drop", '{"a":1}', "bad", mode="DROPMALFORMED"),
    inferred("infer-failfast", '{"a":1}', "bad", mode="FAILFAST"),
    inferred("infer-arrays", '[{"a":1},{"b":2}]', "[]", "null", '{"c":1}{"d":2}'),
    inferred("infer-no-object", '{"a":1}', "5"),
    inferred("infer-order", '{"Z":1,"a":2,"B":3,"_":1,"é":1,"":1}'),
    inferred("infer-case-twins", '{"A":1,"a":2}'),
    inferred("infer-case-twins-that-count", '{"A":1,"a":2,"s":{"x":"y","X":[1.5]}}', '{"a":null}', case_sensitive=True),
    inferred("infer-case-twins-inside", '{"a":[{"x":1,"X":2}]}'),
    inferred("infer-case-of-two-records", '{"A":1}', '{"a":2.5}'),
    inferred("infer-case-of-elements", '{"r":[{"A":1,"b":{"C":null}},{"a":2.5,"b":{"c":3}}]}', '{"r":[]}'),
    inferred("infer-case-of-elements-in-another-order", '{"r":[{"A":1,"b":2},{"a":2.5,"B":3}]}'),
    inferred("infer-case-of-elements-with-other-fields", '{"r":[{"A":1,"b":2},{"a":2}]}'),
    inferred("infer-case-of-elements-with-other-types", '{"r":[{"A":1},{"a":"x"}]}'),
    inferred("infer-case-of-elements-that-counts", '{"r":[{"A":1},{"a":2}]}', case_sensitive=True),
    inferred("infer-case-of-decimals", '{"r":[{"A":1.5},{"a":2.25}]}', prefersDecimal="true"),
    inferred("infer-case-of-long-and-decimal", '{"r":[{"A":1},{"a":123456789012345678901}]}', prefersDecimal="true"),
    json("names-in-another-case", b'{"A":1,"a":2,"B":"x"}\n', "a BIGINT, b STRING"),
    json("case-twins", b'{"A":1,"a":2}\n', "a BIGINT, A STRING"),
    json("case-twins-inside", b'{"s":{"A":1,"a":2}}\n', "s STRUCT<a: BIGINT, A: STRING>"),
    json("case-twins-that-count", b'{"A":1,"a":2}\n{"A":3}\n', "a BIGINT, A STRING", case_sensitive=True),
    inferred("infer-field-twice", '{"a":1,"a":"x"}', difference=FIELD_TWICE),
    inferred("infer-non-numeric", '{"a":NaN,"b":"NaN","c":-Infinity,"d":1e400}', '{"a":1}'),
    json(
        "not-utf8",
        {f"{n}.json": each + b"\n" for n, each in enumerate(NO_UTF8)},
        "a STRING, g BIGINT, m MAP<STRING, STRING>",
    ),
    json("not-utf8-escaped", {f"{n}.json": each + b"\n" for n, each in enumerate(ESCAPED)}, "a STRING, g BIGINT"),
    json(
        "not-utf8-escaped-by-anything",
        {f"{n}.json": each + b"\n" for n, each in enumerate(ESCAPED)},
        "a STRING, g BIGINT",
        allowBackslashEscapingAnyCharacter="true",
    ),
    inferred("infer-multi-line", '[{"a":1,', '"b":"x"},{"a":1.5}]', multiLine="true"),
    text("text-ends", {"a.txt": b"a\nb\r\nc\rd", "b.txt": b"\n\n", "c.txt": b"x", "d.txt": b"y\n", "e.txt": b""}),
    text("text-bytes", b"\xff\n\xc3\xa9\n\x00\n"),
    text("text-byte-order-mark", b"\xef\xbb\xbfa\nb"),
    text("text-separator", b"a|b\nc|", lineSep="|"),
    text("text-separator-long", b"a||b|c||", lineSep="||"),
    text("text-separator-utf16", "aé\nb\n".encode("utf-16le"), encoding="UTF-16LE", lineSep="\n"),
    text("text-encoding", "é\nb\n".encode("latin1"), encoding="ISO-8859-1"),
    text("text-schema", b"a\nb", "x STRING"),
    text("text-schema-number", b"1\n", "x INT"),
    text("text-schema-two", b"1\n", "x STRING, y STRING"),
    text(
        "text-whole",
        {"a.txt": b"a\nb\r\nc\rd", "b.txt": b"\n\n", "e.txt": b"", "f.txt": b"\xff\n\xc3\xa9\n"},
        wholetext="true",
    ),
    text("text-gzip", {"a.txt.gz": gzip.compress(b"a\nb\n", mtime=0)}),
]
