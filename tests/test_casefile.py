"""Case files are read completely or refused with all their faults; cases are found and selected by name and suite."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest

from equiv import casefile
from equiv.dsa_index import PAIR
from equiv.errors import CaseFileError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from equiv.records import Case

GOOD = """
[defaults]
suites = ["nightly"]
axes = { batch = 17, rows = "packed" }
regimes = { q = "midpoints" }

[[case]]
id = "first"
why = "because"
seed = 1
suites = ["smoke"]
axes = { batch = 3, eps = 1 }

[[case]]
id = "second"
why = "so"
seed = 18446744073709551615
regimes = { q = "zero", slots = "reversed" }
"""


def case(body: str) -> str:
    return f'[[case]]\nid = "a"\nwhy = "w"\nseed = 1\nsuites = ["pr"]\n{body}\n'


TOO_LONG = (
    "Exceeds the limit (4300 digits) for integer string conversion: value has 5000 digits; "
    "use sys.set_int_max_str_digits() to increase the limit"
)

BAD = [
    ("", ["$.case: missing: expected an array"]),
    ("case = []", ["$.case: no case in this file"]),
    ("case = 3", ["$.case: expected an array, got 3"]),
    ("case = [1]", ["$.case[0]: expected a table, got 1"]),
    ('pair = "kda"\n' + case(""), ['$.pair: expected "dsa_index", got "kda"']),
    ("cases = 1\n" + case(""), ['$.cases: unknown key; did you mean "case"?']),
    (
        "[[case]]\n",
        [
            "$.case[0].id: missing: expected a string",
            "$.case[0].why: missing: expected a string",
            "$.case[0].seed: missing: expected an integer",
            '$.case[0].suites: missing: expected an array of "smoke", "pr", "nightly"',
        ],
    ),
    (case("sede = 2"), ['$.case[0].sede: unknown key; did you mean "seed"?']),
    (case("zzz = 2"), ["$.case[0].zzz: unknown key; known: id, why, seed, suites, axes, regimes"]),
    (case("axes = 7"), ["$.case[0].axes: expected a table, got 7"]),
    (case("axes = { batch = 0 }"), ["$.case[0].axes.batch: expected an integer from 1 to 1024, got 0"]),
    (case("axes = { batch = true }"), ["$.case[0].axes.batch: expected an integer, got true"]),
    (case('axes = { batch = "17" }'), ['$.case[0].axes.batch: expected an integer, got "17"']),
    (case("axes = { batch = 17.0 }"), ["$.case[0].axes.batch: expected an integer, got 17.0"]),
    (case("axes = { eps = 2 }"), ["$.case[0].axes.eps: expected a float from 1e-12 to 1.0, got 2.0"]),
    (case("axes = { eps = nan }"), ["$.case[0].axes.eps: expected a float from 1e-12 to 1.0, got nan"]),
    (case("axes = { bach = 17 }"), ['$.case[0].axes.bach: unknown axis; did you mean "batch"?']),
    (
        case('axes = { format = "fp44" }'),
        ['$.case[0].axes.format: expected one of "fp8", "fp4", got "fp44"; did you mean "fp4"?'],
    ),
    (case("axes = { key_floor = 1 }"), ["$.case[0].axes.key_floor: expected one of 0.0001, 1e-10, got 1.0"]),
    (
        case('regimes = { cache = "byte", queue = "zero" }'),
        [
            '$.case[0].regimes.cache: expected one of "bytes", "zero", "ones", got "byte"; did you mean "bytes"?',
            (
                "$.case[0].regimes.queue: nothing called that has regimes; "
                "known: q, key, head_weights, norm_w, norm_b, slots, cache"
            ),
        ],
    ),
    (
        case('axes = { format = "fp4" }'),
        ['$.case[0].axes.scale: an fp4 page holds UE8M0 scale bytes: write scale = "mx", got "f32"'],
    ),
    (
        case("axes = { pages = 2, batch = 128, page_stride = 100 }"),
        [
            "$.case[0].axes.pages: 2 pages have room for 127 requests, got batch=128",
            "$.case[0].axes.page_stride: a page has 8448 bytes, got page_stride=100",
            "$.case[0].axes.page_stride: must be a multiple of 16 bytes, got 100",
        ],
    ),
    (
        case('regimes = { slots = "far_pages" }'),
        [
            (
                "$.case[0].regimes.slots: far_pages needs a page that starts at byte 2**32 or beyond, "
                "the last one starts at 8448"
            )
        ],
    ),
    (
        case("") + case("axes = { batch = 0 }") + case('axes = { format = "fp4" }'),
        [
            '$.case[1].id: "a" is already the id of $.case[0]',
            "$.case[1].axes.batch: expected an integer from 1 to 1024, got 0",
            '$.case[2].id: "a" is already the id of $.case[0]',
            '$.case[2].axes.scale: an fp4 page holds UE8M0 scale bytes: write scale = "mx", got "f32"',
        ],
    ),
    (
        '[[case]]\nid = "A b;c"\nwhy = "  "\nseed = -1\nsuites = ["smokey", 4]\n',
        [
            '$.case[0].id: expected lower-case letters, digits, "-", "_" and ".", got "A b;c"',
            "$.case[0].seed: expected an integer from 0 to 2**64 - 1, got -1",
            '$.case[0].suites[0]: expected one of "smoke", "pr", "nightly", got "smokey"; did you mean "smoke"?',
            '$.case[0].suites[1]: expected one of "smoke", "pr", "nightly", got 4',
            "$.case[0].why: expected some words, got an empty string",
        ],
    ),
    (
        '[defaults]\nseed = 1\naxes = { batch = 2000 }\nsuites = "pr"\n' + case(""),
        [
            "$.defaults.seed: unknown key; known: suites, axes, regimes",
            '$.defaults.suites: expected an array, got "pr"',
            "$.defaults.axes.batch: expected an integer from 1 to 1024, got 2000",
        ],
    ),
    ('[[case]]\nid = "a"\nwhy = oops\n', ["$: not TOML: Invalid value (at line 3, column 7)"]),
    (f"case = {'[' * 5000}{']' * 5000}\n", ["$: not TOML: maximum recursion depth exceeded"]),
    (
        f"case = {'9' * 5000}\n",
        [f"$: not TOML: {TOO_LONG}"],
    ),
    (
        '[[case]]\nid = "a"\nwhy = "w"\nseed = 1\nsuites = []\n',
        ['$.case[0].suites: empty: expected at least one of "smoke", "pr", "nightly"'],
    ),
    (case("") + "seed = 2\n", ["$: not TOML: Cannot overwrite a value (at line 7, column 9)"]),
]


def write(folder: Path, text: str) -> Path:
    path = folder / "dsa_index.toml"
    path.write_text(text)
    return path


def load(folder: Path, text: str) -> tuple[Case, ...]:
    return casefile.load(write(folder, text), PAIR)


@pytest.mark.parametrize(("text", "faults"), BAD, ids=[faults[0].partition(":")[0] for _, faults in BAD])
def test_a_bad_file_is_refused_with_all_its_faults(tmp_path: Path, text: str, faults: list[str]) -> None:
    with pytest.raises(CaseFileError) as caught:
        load(tmp_path, text)
    assert [str(fault) for fault in caught.value.faults] == faults
    assert caught.value.exit_code == 2
    assert str(caught.value) == f"{tmp_path / 'dsa_index.toml'}: {len(faults)} fault(s)\n" + "\n".join(
        f"  {fault}" for fault in faults
    )


def test_a_file_that_is_not_text_is_a_fault_and_a_missing_one_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff")
    with pytest.raises(CaseFileError, match=r"\$: not TOML: 'utf-8' codec can't decode byte 0xff"):
        casefile.load(path, PAIR)
    with pytest.raises(UsageError, match=r"cannot read case file .*nowhere\.toml: No such file"):
        casefile.load(tmp_path / "nowhere.toml", PAIR)


def test_a_case_says_what_the_defaults_do_not(tmp_path: Path) -> None:
    first, second = load(tmp_path, GOOD)
    assert (first.name, first.why, first.seed) == ("dsa_index::first", "because", 1)
    assert first.suites == ("smoke", "pr", "nightly")
    assert second.suites == ("nightly",)
    assert dict(first.axes) == {axis.name: axis.default for axis in PAIR.axes} | {
        "batch": 3,
        "rows": "packed",
        "eps": 1.0,
    }
    assert isinstance(first.axes["eps"], float)
    assert second.axes["batch"] == 17
    assert (first.regimes["q"], first.regimes["slots"]) == ("midpoints", "permuted")
    assert (second.regimes["q"], second.regimes["slots"]) == ("zero", "reversed")
    assert first.origin == f"{tmp_path / 'dsa_index.toml'} $.case[0]"


def test_without_a_pair_the_name_of_the_file_says_which(tmp_path: Path) -> None:
    assert casefile.load(write(tmp_path, GOOD))[0].pair == "dsa_index"
    other = tmp_path / "dsa_indx.toml"
    other.write_text(GOOD)
    with pytest.raises(UsageError, match="no pair named 'dsa_indx'"):
        casefile.load(other)


def names(cases: tuple[Case, ...]) -> list[str]:
    return [found.id for found in cases]


def test_select_takes_suites_patterns_and_named_cases(tmp_path: Path) -> None:
    cases = load(tmp_path, GOOD)
    assert names(casefile.select(cases)) == ["first", "second"]
    assert names(casefile.select(cases, suites=["pr"])) == ["first"]
    assert names(casefile.select(cases, ["dsa_index"], ["nightly"])) == ["first", "second"]
    assert names(casefile.select(cases, ["dsa_index::s*"])) == ["second"]
    assert names(casefile.select(cases, ["dsa_index::second"], ["smoke"])) == ["second"]
    assert names(casefile.select(cases, ["dsa_index::*"], ["smoke"])) == ["first"]


@pytest.mark.parametrize(
    ("targets", "suites", "problem"),
    [
        (["dsa_indx"], [], "no case matches 'dsa_indx'; did you mean \"dsa_index\"?"),
        (["dsa_index::frist"], [], "no case matches 'dsa_index::frist'; did you mean \"dsa_index::first\"?"),
        ([], ["prr"], "no suite named 'prr'; did you mean \"pr\"?"),
        (["dsa_index::s*"], ["smoke"], "no case of dsa_index::s* is in suite smoke"),
    ],
)
def test_select_refuses_what_matches_nothing(
    tmp_path: Path, targets: list[str], suites: list[str], problem: str
) -> None:
    with pytest.raises(UsageError) as caught:
        casefile.select(load(tmp_path, GOOD), targets, suites)
    assert str(caught.value) == problem


def test_cases_are_found_upward_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cases").mkdir()
    deep = tmp_path / "a" / "b"
    (deep / "cases").mkdir(parents=True)
    monkeypatch.chdir(deep)
    write(tmp_path / "cases", GOOD)
    assert casefile.find_cases() == tmp_path / "cases"
    assert casefile.case_file("dsa_index") == tmp_path / "cases" / "dsa_index.toml"
    assert names(casefile.load_all(pair_names=["dsa_index"])) == ["first", "second"]


def test_without_a_cases_folder_those_of_the_package_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (casefile.find_cases() / "dsa_index.toml").is_file()
    assert len(casefile.load_all(pair_names=["dsa_index"])) > 60


def test_a_given_folder_is_taken_or_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"no case files \(\*\.toml\) in {tmp_path}"):
        casefile.find_cases(tmp_path)
    with pytest.raises(UsageError, match=rf"no case file dsa_index\.toml in {tmp_path}"):
        casefile.case_file("dsa_index", tmp_path)


GAP = '[[gap]]\nid = "dsa_index::first"\nreason = "slow"\nuntil = 2026-05-01\n'


def gap_faults(folder: Path, text: str) -> list[str]:
    path = folder / casefile.GAPS
    path.write_text(text)
    with pytest.raises(CaseFileError) as caught:
        casefile.load_gaps(path, load(folder, GOOD), dt.date(2026, 5, 1))
    return [str(fault) for fault in caught.value.faults]


def test_a_known_gap_names_a_case_a_reason_and_a_date(tmp_path: Path) -> None:
    path = tmp_path / casefile.GAPS
    cases = load(tmp_path, GOOD)
    assert casefile.load_gaps(path, cases, dt.date(2026, 5, 1)) == ()
    path.write_text(GAP)
    gap = casefile.Gap("dsa_index::first", "slow", dt.date(2026, 5, 1))
    assert casefile.load_gaps(path, cases, dt.date(2026, 5, 1)) == (gap,)


def test_stale_unknown_and_malformed_gaps_are_faults(tmp_path: Path) -> None:
    assert gap_faults(tmp_path, GAP.replace("::first", "::fist")) == [
        '$.gap[0].id: no case is called "dsa_index::fist"; did you mean "dsa_index::first"?'
    ]
    assert gap_faults(tmp_path, GAP.replace("2026-05-01", "2026-04-30")) == [
        "$.gap[0].until: was accepted until 2026-04-30: close the gap, or say why it stays"
    ]
    assert gap_faults(tmp_path, GAP + GAP) == ['$.gap[1].id: "dsa_index::first" is listed twice']
    assert gap_faults(tmp_path, '[[gap]]\nreason = ""\nuntil = "soon"') == [
        '$.gap[0].until: expected a date, got "soon"',
        "$.gap[0].id: missing: expected a string",
        "$.gap[0].reason: expected some words, got an empty string",
    ]
