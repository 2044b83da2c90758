"""Text tables as people have them: the same numbers arrive, what was recognised is said, what is doubtful is refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import retrace_sde as rt
from retrace_sde.io.dialect import NOTES_KEY, Dialect
from retrace_sde.io.files import read_table

TABLE = pd.DataFrame(
    {
        "id": ["007", "007", "008", "008"],
        "größe": [1234.5, -0.25, 12.0, 1e-3],
        "count": [1, 2, 3, 1400],
        "where": ["a b", "x;y", "p,q", "…"],
    }
)


def write(tmp_path, content, name="t.csv"):
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


KINDS = ["arrow"] if pd.__version__ >= "3" else ["objects"]
KINDS += (
    ["arrow"] if "2.3" <= pd.__version__ < "3" else []
)  # before, the option meant another kind of text


@pytest.fixture(autouse=True, params=KINDS)
def texts(request):
    """Text as pandas 2 holds it, and as pandas 3 does, whose regular expressions are of another engine."""
    if pd.__version__ >= "3":
        yield
        return
    with pd.option_context("future.infer_string", request.param == "arrow"):
        yield


def read(tmp_path, content, *, name="t.csv", text=("id",), **dialect):
    frame = read_table(write(tmp_path, content, name), text=text, **dialect)
    return frame, "".join(frame.attrs.get(NOTES_KEY, []))


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("decimal", [".", ","])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16"])
def test_every_writing_gives_the_same_table(separator, decimal, encoding, tmp_path):
    content = TABLE.to_csv(sep=separator, decimal=decimal, index=False).encode(encoding)
    frame, said = read(tmp_path, content)
    whole = pd.DataFrame(TABLE.to_dict("list"))  # its text as pandas holds it now
    pd.testing.assert_frame_equal(frame.astype({"id": object}), whole.astype({"id": object}))
    assert ("separated" in said) == (separator != ",")
    assert ("decimal commas" in said) == (decimal == ",")
    assert ("encoding" in said) == (encoding in ("cp1252", "utf-16"))


def test_what_is_given_is_not_guessed(tmp_path):
    content = "id;a;b\n1;1,5;2\n2;2,5;3\n"
    frame, said = read(tmp_path, content, sep=";", decimal=",", encoding="utf-8")
    assert list(frame["a"]) == [1.5, 2.5]
    assert said == "the file was read with cells separated by semicolons"
    with pytest.raises(ValueError, match="not utf-8 text"):
        read(tmp_path, "id,ä\n1,2\n".encode("cp1252"), encoding="utf-8")
    for wrong in (
        {"separator": "ab"},
        {"decimal": ";"},
        {"encoding": "klingon"},
        {"separator": ",", "decimal": ","},
    ):
        with pytest.raises(ValueError, match="--"):
            Dialect(**wrong)


@pytest.mark.parametrize(
    ("content", "want", "said"),
    [
        ("id;a\n1;1.234,5\n2;7\n3;1.000\n", [1234.5, 7, 1000], "decimal commas"),
        ('id,a\n1,"1,234.5"\n2,7\n', [1234.5, 7], ""),
        ("id;a\n1;1 234,5\n2;7,0\n", [1234.5, 7], "decimal commas"),
        ("id;a;b\n1;5,796;7\n2;4,250;\n", [5.796, 4.25], "decimal commas"),
        ("id,a\n1,−2.5\n2,3\n", [-2.5, 3], ""),
        ("id,a\n1,.\n2,3\n3,4\n", [np.nan, 3, 4], "'.' as missing (1 cells)"),
        ("id,a\n1,#DIV/0!\n2,3\n3,NA\n", [np.nan, 3, np.nan], "'#DIV/0!' as missing"),
        ("sep=;\nid;a\n1;2\n3;4\n", [2, 4], "semicolons"),
        ("Export of everything\n\nid;a;b\n1;2;3\n3;4;5\n", [2, 4], "above the header skipped"),
        (",id,a\n0,x,2\n1,y,4\n", [2, 4], "row numbers left out"),
        ('"","id","a"\n"1","x",2\n"2","y",4\n', [2, 4], "row numbers left out"),
        ("id,a,\n1,2,\n3,4,\n", [2, 4], ""),
        ("id,a\n1,2,\n3,4,\n", [2, 4], ""),
        ("\n\nid,a\r\n1,2\r\n3,4\r\n", [2, 4], ""),
    ],
)  # fmt: skip
def test_what_spreadsheets_and_packages_write(content, want, said, tmp_path):
    frame, note = read(tmp_path, content)
    np.testing.assert_array_equal(frame["a"].astype(float), want)
    assert said in note


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        ("a,b\n1,2,3\n4,5,6\n", "the header names 2 columns, 'a', 'b', but lines have 3 cells"),
        ("a,b,c\n1,2\0,3\n4,5,6\n", "zero bytes in line 2"),
        ("\na,a,b\n1,2,3\n", "more than one column is named 'a'"),
        ("a,b\n1,2\n3,4,5\n", "line 3 has 3 cells where the header has 2"),
        ('id,a\n1,"1,234"\n2,"2,500"\n', "say --decimal"),
        ("id;a;b\n1;5,796;0.5\n2;4,250;0.25\n", "say --decimal"),
        ("id;x\n", "no rows"),
        (
            'note\n\na,b\n1,2\n3,"x\n5,6\n',
            'a quote (") that opens in row 5, the header counted, is never closed',
        ),
    ],
)
def test_what_would_be_misread_is_refused_with_the_cure(content, hint, tmp_path):
    with pytest.raises(ValueError, match=r"t\.csv") as refusal:
        read(tmp_path, content)
    assert hint in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_names_may_hold_the_separator(tmp_path):
    frame, _ = read(tmp_path, 'id,"weight, kg","weight, lb"\na,1,2\nb,3,4\n')
    assert list(frame.columns) == ["id", "weight, kg", "weight, lb"]


def test_a_named_index_in_parquet_is_a_column(tmp_path):
    wide = pd.DataFrame({"id": [1, 1, 2], "a": [1.0, 2.0, 3.0]})
    wide.set_index("id").to_parquet(tmp_path / "one.parquet")
    wide.set_index(["id", "a"]).assign(b=1).to_parquet(tmp_path / "two.parquet")
    wide.rename_axis("id").to_parquet(tmp_path / "same.parquet")
    assert list(read_table(tmp_path / "one.parquet").columns) == ["id", "a"]
    assert list(read_table(tmp_path / "two.parquet").columns) == ["id", "a", "b"]
    assert "id" in read_table(tmp_path / "same.parquet").columns


def dated(cells, **options):
    frame = pd.DataFrame({"id": np.repeat(["a", "b"], 3), "x": [1.0, 2, 4, 3, 1, 2], "when": cells})
    return rt.Panel.from_frame(frame, subject="id", variables="x", time="when", **options)


@pytest.mark.parametrize(
    ("cells", "days", "said"),
    [
        (["05.03.2024", "25.03.2024", "1.4.2024"] * 2, [0, 20, 27], "day first"),
        (["05.03.24", "07.03.24", "1.4.24"] * 2, [0, 2, 27], "day first"),
        (["3/5/2024", "3/25/2024", "4/1/2024"] * 2, [0, 20, 27], "month first"),
        (["3/5/2024 6:00", "3/5/2024 18:00", "3/25/2024 6:00"] * 2, [0, 0.5, 20], "month first"),
        (["5 Mar 2024", "25 Mar 2024", "1 Apr 2024"] * 2, [0, 20, 27], "days since 2024-03-05"),
        ([20240305, 20240325, 20240401] * 2, [0, 20, 27], "days since 2024-03-05"),
        (["2024-03-05", "2024-03-25", "2024-04-01"] * 2, [0, 20, 27], "days since 2024-03-05"),
    ],
)
def test_dates_are_recognised_and_their_unit_is_said(cells, days, said):
    panel = dated(cells)
    np.testing.assert_allclose(panel.times[0], days)
    assert said in " ".join(panel.notes)
    assert "days" in " ".join(panel.notes)


def test_dates_that_can_be_read_two_ways_are_refused():
    with pytest.raises(ValueError, match="--dayfirst or --monthfirst"):
        dated(["3/5/2024", "4/5/2024", "5/5/2024"] * 2)
    with pytest.raises(ValueError, match="the same way"):
        dated(["25/3/2024", "3/25/2024", "5/5/2024"] * 2)


def test_the_unit_asked_for_is_said_too():
    panel = dated(["2024-03-05", "2024-03-12", "2024-03-26"] * 2, time_unit="weeks")
    np.testing.assert_allclose(panel.times[0], [0, 1, 3])
    assert "weeks since 2024-03-05 (as asked for)" in " ".join(panel.notes)


class Counted(str):
    """A name that counts how often it is compared."""

    asked = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Counted.asked += 1
        return str.__eq__(self, other)


def test_checks_of_names_are_linear_in_their_number():
    """A hundred thousand columns took minutes when every name was compared with every other."""
    names = [Counted(f"c{k}") for k in range(1500)]
    frame = pd.DataFrame(np.ones((6, 1500)), columns=pd.Index(names, dtype=object))
    frame.insert(0, "id", list("ababab"))
    Counted.asked = 0
    with pytest.raises(ValueError, match="never change within a subject"):
        rt.Panel.from_frame(frame, subject="id", variables=names)
    assert Counted.asked < 100 * 1500


def test_many_columns_are_read(tmp_path):
    names = [f"c{k}" for k in range(20_000)]
    frame, _ = read(tmp_path, f"id,{','.join(names)}\n" + f"a,{','.join('1' * 20_000)}\n" * 2)
    assert frame.shape == (2, 20_001)


def test_a_spreadsheet_is_read_from_its_first_sheet(tmp_path):
    pytest.importorskip("openpyxl")
    table = pd.DataFrame(
        {
            "id": ["007", "007"],
            "when": pd.to_datetime(["2024-03-05", "2024-03-25"]),
            "x": [1.5, None],
        }
    )
    with pd.ExcelWriter(tmp_path / "t.xlsx") as book:
        table.to_excel(book, sheet_name="Data", index=False)
        table.to_excel(book, sheet_name="Old", index=False)
    frame = read_table(tmp_path / "t.xlsx", text=["id"])
    pd.testing.assert_frame_equal(frame.astype({"id": object}), table, check_dtype=False)
    assert frame.attrs[NOTES_KEY] == [
        "sheet 'Data' was read, and not 'Old' (--sheet names another)"
    ]
    table.to_excel(tmp_path / "titled.xlsx", index=False, startrow=2)
    with pytest.raises(ValueError, match="must name every column"):
        read_table(tmp_path / "titled.xlsx")


def test_a_spreadsheet_without_its_reader_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "openpyxl", None)
    with pytest.raises(ValueError, match=r"pip install 'retrace-sde\[office\]'"):
        read_table(write(tmp_path, b"PK", "t.xlsx"))


def test_statistics_packages(tmp_path):
    table = pd.DataFrame({"id": [1, 1, 2], "x": [1.5, 2.5, 3.5]})
    table.to_stata(tmp_path / "t.dta", write_index=False)
    pd.testing.assert_frame_equal(read_table(tmp_path / "t.dta"), table, check_dtype=False)
    with pytest.raises(ValueError, match=r"t\.sas7bdat"):
        read_table(write(tmp_path, b"x" * 100, "t.sas7bdat"))


def test_spss(tmp_path):
    pyreadstat = pytest.importorskip("pyreadstat")
    table = pd.DataFrame({"id": ["a", "a", "b"], "x": [1.5, 2.5, 3.5]})
    pyreadstat.write_sav(table, tmp_path / "t.sav")
    pd.testing.assert_frame_equal(read_table(tmp_path / "t.sav"), table)


def test_a_header_wider_than_a_glance_is_read_to_its_end(tmp_path):
    """Its names, cut short, repeat one: refused as a duplicate."""
    names = [f"gene{k}" for k in range(20_000)]
    text = "\n".join(
        [",".join(["id", *names]), *(",".join([who, *["1.5"] * len(names)]) for who in "ab")]
    )
    frame, _ = read(tmp_path, text + "\n")
    assert list(frame.columns) == ["id", *names]
