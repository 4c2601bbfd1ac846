"""The report for people: every status counted, every difference placed, bits whole."""

from __future__ import annotations

from equiv.records import Difference, Element, OutputVerdict, Status, Verdict
from equiv.report import text


def verdict(case: str, status: Status, device: str = "emulated:sm_90a", **more: object) -> Verdict:
    return Verdict(f"fake::{case}", device, 7, status, f"{case} said so", **more)  # type: ignore[arg-type]


STATUS_NAMES = ["IDENTICAL", "REORDERED", "WITHIN", "UNSUPPORTED", "NOT_RUN", "MISMATCH", "ERROR"]

WRONG = verdict(
    "wrong",
    Status.MISMATCH,
    outputs=(
        OutputVerdict("pool", Status.IDENTICAL, "equal"),
        OutputVerdict(
            "y",
            Status.MISMATCH,
            "2 of 6 elements differ from the candidate's model",
            (
                Difference(
                    "y",
                    "model",
                    "candidate",
                    "bf16",
                    2,
                    6,
                    (Element((0, 3), "row 0, column 3", 0x3F8E, 0x3F90, 1.109375, 1.125, 2),),
                    "all in row 0",
                ),
            ),
            "candidate",
            0.5,
            1,
        ),
    ),
    declared=("sum: tree of 4 (oracle), in order (candidate)",),
    again="equiv run fake::wrong --device emulated:sm_90a",
)


def test_a_mismatch_shows_bits_values_place_ulps_pattern_and_command() -> None:
    assert text.case_text(WRONG).splitlines() == [
        "MISMATCH fake::wrong  emulated:sm_90a  seed 7",
        "  wrong said so",
        (
            "  y: MISMATCH (candidate): 2 of 6 elements differ from the candidate's model, "
            "50.0% of the envelope used, 1 undefined element(s) excluded"
        ),
        "    2 of 6 differ, model (expected) against candidate (got)",
        "      at      [0, 3] row 0, column 3  expected 0x3f8e 1.109375   got 0x3f90 1.125   2 ulp",
        "      where   all in row 0",
        "  declared  sum: tree of 4 (oracle), in order (candidate)",
        "  again     equiv run fake::wrong --device emulated:sm_90a",
    ]


def test_every_status_is_counted_also_those_that_nobody_has() -> None:
    verdicts = [verdict("a", Status.IDENTICAL), verdict("b", Status.IDENTICAL), WRONG]
    assert text.counts(verdicts) == (
        "3 case(s): 2 IDENTICAL, 0 REORDERED, 0 WITHIN, 0 UNSUPPORTED, 0 NOT_RUN, 1 MISMATCH, 0 ERROR"
    )


def test_the_table_has_a_line_for_each_pair_and_device_with_time_and_speed() -> None:
    verdicts = [
        verdict("a", Status.IDENTICAL, seconds=1.5, launch_seconds=0.5, warp_instructions=3_000_000),
        verdict("a", Status.UNSUPPORTED, "cuda:0"),
        verdict("b", Status.ERROR, seconds=0.5),
    ]
    head, gpu, emulated = text.table(verdicts).splitlines()
    assert head.split() == ["pair", "device", *STATUS_NAMES, "cases", "seconds", "warp-instr/s"]
    assert gpu.split() == ["fake", "cuda:0", "0", "0", "0", "1", "0", "0", "0", "1", "0.0", "-"]
    assert emulated.split() == ["fake", "emulated:sm_90a", "1", "0", "0", "0", "0", "0", "1", "2", "2.0", "6e+06"]


def test_the_worst_cases_come_first_and_identical_ones_are_counted_only() -> None:
    report = text.render(
        [verdict("within", Status.WITHIN), verdict("fine", Status.IDENTICAL), WRONG], {"numpy": "2.4"}, ["journal x"]
    )
    assert report.index("MISMATCH fake::wrong") < report.index("WITHIN 1 case(s)") < report.index("  fake::within  ")
    assert "fake::fine" not in report
    assert "with numpy 2.4\n\njournal x\n\n3 case(s): " in report


def test_reordered_cases_are_listed_once_below_what_they_declare() -> None:
    difference = Difference("y", "oracle", "candidate", "f32", 3, 60, ())
    output = OutputVerdict("y", Status.REORDERED, "inside the envelope", (difference,), envelope_used=0.25)
    declared = ("mean: tree of 4 (oracle), butterfly (candidate)",)
    members = [verdict(name, Status.REORDERED, outputs=(output,), declared=declared) for name in "ab"]
    assert (
        "REORDERED 2 case(s), both parties equal their models; they declare:\n"
        "  declared  mean: tree of 4 (oracle), butterfly (candidate)\n"
        "  fake::a  emulated:sm_90a  y: 3 of 60 differ, 25.0% of the envelope\n"
        "  fake::b  emulated:sm_90a  y: 3 of 60 differ, 25.0% of the envelope"
    ) in text.render(members, {})


def test_cases_that_lack_something_and_those_without_a_model_are_put_together_by_reason() -> None:
    same = OutputVerdict("y", Status.WITHIN, "inside", envelope_used=0.0)
    other = OutputVerdict("y", Status.WITHIN, "inside", (Difference("y", "oracle", "candidate", "f32", 3, 60, ()),))
    within = [verdict("a", Status.WITHIN, outputs=(same,)), verdict("b", Status.WITHIN, outputs=(other,))]
    lacking = [Verdict(f"fake::{name}", "cuda:0", 1, Status.UNSUPPORTED, "needs axis:format=fp4") for name in "cd"]
    report = text.render([*within, *lacking], {})
    assert "UNSUPPORTED 2 case(s): needs axis:format=fp4\n  fake::c  cuda:0\n  fake::d  cuda:0\n" in report
    assert (
        "WITHIN 2 case(s): no model to be equal to, inside what any order and variant may yield:\n"
        "  fake::a  emulated:sm_90a  y: no bit differs, 0.0% of the envelope\n"
        "  fake::b  emulated:sm_90a  y: 3 of 60 differ\n"
    ) in report


def test_an_element_without_a_distance_says_so() -> None:
    line = text._element(Element((5,), "byte 5", 0xF, 0x3, float("nan"), 3.0, None), "u8")
    assert line == "[5] byte 5  expected 0x0f nan   got 0x03 3   no distance"


def test_a_known_gap_is_shown_with_its_reason_and_still_counted_and_a_closed_one_is_asked_for() -> None:
    gap = "rsqrt of Ada (until 2030-01-31)"
    report = text.render([verdict("open", Status.MISMATCH, gap=gap), verdict("shut", Status.IDENTICAL, gap=gap)], {})
    assert f"MISMATCH fake::open  emulated:sm_90a  seed 7\n  known gap: {gap}\n  open said so" in report
    assert f"\n\nfake::shut passes: take it out of known_gaps.toml: {gap}\n\n" in report
    assert "1 MISMATCH" in report


def test_notes_of_cases_that_are_not_shown_one_by_one_are_counted_and_shown_all_the_same() -> None:
    note = "oracle: not vouched for: add: other SASS"
    found = [verdict(name, Status.IDENTICAL, notes=(note,)) for name in ("a", "b")]
    found.append(verdict("c", Status.REORDERED, "emulated:sm_100a", notes=(note,)))
    found.append(verdict("d", Status.IDENTICAL))
    shown = text.render(found, {})
    assert f"NOTE emulated:sm_90a, 2 case(s): {note}\nNOTE emulated:sm_100a, 1 case(s): {note}\n" in shown
    assert "NOTE" not in text.render(found[3:], {})
