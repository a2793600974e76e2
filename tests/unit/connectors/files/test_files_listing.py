import os

import pyarrow.fs as pa_fs
import pytest

from headgate.connectors.files.listing import FileListing, is_hidden
from headgate.errors import OptionError


class OtherFileSystem(pa_fs.SubTreeFileSystem):
    """Local files through the interface of any file system, so that the listing for remote ones runs."""


@pytest.fixture(params=["local", "other"])
def listing_of(request, tmp_path):
    def make(*roots, **more):
        if request.param == "local":
            return FileListing(
                file_system=pa_fs.LocalFileSystem(),
                roots=tuple(os.path.join(tmp_path, each) for each in roots),
                **({**more, "base_path": os.path.join(tmp_path, more["base_path"])} if "base_path" in more else more),
            )
        return FileListing(file_system=OtherFileSystem(str(tmp_path), pa_fs.LocalFileSystem()), roots=roots, **more)

    def names(*roots, **more):
        return [
            os.path.relpath(each.path, tmp_path) if os.path.isabs(each.path) else each.path
            for each in make(*roots, **more).list_files()
        ]

    make.names = names
    return make


def put(folder, path, content="x", modified=1000):
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(content)
    os.utime(target, (modified, modified))


def test_files_come_by_time_then_path(tmp_path, listing_of):
    put(tmp_path, "d/b", modified=5)
    put(tmp_path, "d/a", modified=5)
    put(tmp_path, "d/z", modified=1)
    files = listing_of("d").list_files()
    assert [os.path.basename(each.path) for each in files] == ["z", "a", "b"]
    assert [(each.size, each.modified_ms) for each in files] == [(1, 1000), (1, 5000), (1, 5000)]


def test_hidden_empty_and_nested_files_are_left_out(tmp_path, listing_of):
    for name in ("a", "_SUCCESS", ".a.crc", "x._COPYING_", "_temporary/0/b", "sub/c", ".hidden/d"):
        put(tmp_path, f"d/{name}")
    put(tmp_path, "d/empty", "")
    assert listing_of.names("d") == ["d/a"]
    assert listing_of.names("d", recursive=True) == ["d/a", "d/sub/c"]


def test_names_with_a_sign_of_equality_are_not_hidden_by_an_underscore():
    assert [is_hidden(each) for each in ("_x=1", "_x", ".x=1", "a")] == [False, True, True, False]


def test_partition_folders_are_entered_and_unescaped(tmp_path, listing_of):
    put(tmp_path, "d/year=2026/city=New%20York/a")
    put(tmp_path, "d/year=2027/city=__HIVE_DEFAULT_PARTITION__/a")
    assert [each.partitions for each in listing_of("d").list_files()] == [
        (("year", "2026"), ("city", "New York")),
        (("year", "2027"), ("city", None)),
    ]
    assert all(each.partitions == () for each in listing_of("d", recursive=True).list_files())


def test_a_root_inside_a_partition_needs_a_base_path(tmp_path, listing_of):
    put(tmp_path, "d/year=2026/a")
    assert listing_of("d/year=2026").list_files()[0].partitions == ()
    assert listing_of("d/year=2026", base_path="d").list_files()[0].partitions == (("year", "2026"),)
    assert listing_of("d/year=2026/a", base_path="d").list_files()[0].partitions == (("year", "2026"),)
    with pytest.raises(OptionError, match="basePath"):
        listing_of("d", base_path="d/year=2026").list_files()


def test_different_partition_columns_are_an_error(tmp_path, listing_of):
    put(tmp_path, "d/year=2026/a")
    put(tmp_path, "d/month=1/a")
    with pytest.raises(OptionError, match="different partition folders"):
        listing_of("d").list_files()


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("d/*.csv", ["d/a1.csv", "d/b2.csv"]),
        ("d/?1.*", ["d/a1.csv", "d/c1.txt"]),
        ("d/[ac]1*", ["d/a1.csv", "d/c1.txt"]),
        ("d/[^a]*", ["d/b2.csv", "d/c1.txt"]),
        ("d/{a1,b2}.csv", ["d/a1.csv", "d/b2.csv"]),
        ("{d,e}/a*", ["d/a1.csv", "e/a9.csv"]),
        ("*/a*", ["d/a1.csv", "e/a9.csv"]),
    ],
)
def test_globs(tmp_path, listing_of, pattern, expected):
    for name in ("d/a1.csv", "d/b2.csv", "d/c1.txt", "e/a9.csv"):
        put(tmp_path, name)
    assert listing_of.names(pattern) == expected


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (r"d/\{c\}.json", ["d/{c}.json"]),
        (r"d/\{c}.json", ["d/{c}.json"]),
        ("d/c}.json", ["d/c}.json"]),
        (r"d/{\{c\},c\}}.json", ["d/c}.json", "d/{c}.json"]),
        (r"d/{a\,b,[[]1]}", ["d/[1]", "d/a,b"]),
        (r"d/\[1\]", ["d/[1]"]),
        (r"\d/\*", ["d/*"]),
        (r"d/\**", ["d/*", "d/*x"]),
        (r"d/a\\b", ["d/a\\b"]),
    ],
)
def test_what_follows_a_backslash_means_itself(tmp_path, listing_of, pattern, expected):
    for name in ("{c}.json", "c}.json", "c.json", "[1]", "1", "a,b", "*", "*x", "a\\b", "ab"):
        put(tmp_path, f"d/{name}")
    assert sorted(listing_of.names(pattern)) == expected


def test_filters_by_name_and_time(tmp_path, listing_of):
    put(tmp_path, "d/a.csv", modified=10)
    put(tmp_path, "d/b.csv", modified=20)
    put(tmp_path, "d/c.txt", modified=15)
    assert listing_of.names("d", name_filter="*.{csv,tsv}") == ["d/a.csv", "d/b.csv"]
    assert listing_of.names("d", modified_after_ms=10_000) == ["d/c.txt", "d/b.csv"]
    assert listing_of.names("d", modified_before_ms=20_000) == ["d/a.csv", "d/c.txt"]


def test_a_file_under_two_roots_is_listed_once(tmp_path, listing_of):
    put(tmp_path, "d/a")
    assert listing_of.names("d", "d/a", "*/a") == ["d/a"]


@pytest.mark.parametrize("root", ["nowhere", "nowhere/*.csv", "d/{a"])
def test_a_path_that_does_not_exist_is_an_error_that_names_it(tmp_path, listing_of, root):
    put(tmp_path, "d/a")
    with pytest.raises(OptionError, match="cannot be read") as error:
        listing_of(root).list_files()
    assert root in str(error.value)


def test_a_glob_may_match_nothing_yet(tmp_path, listing_of):
    assert listing_of("d/*.csv", globs_may_be_empty=True).list_files() == []


def test_the_innermost_run_of_partition_folders_counts(tmp_path, listing_of):
    put(tmp_path, "d/sub/year=2026/a")
    put(tmp_path, "d/sub/year=2027/deep/b")
    assert [each.partitions for each in listing_of("d").list_files()] == [(("year", "2026"),), (("year", "2027"),)]
