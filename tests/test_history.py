"""Runs side by side: shards become one run, a missing one is named, and a bad case is dated."""

from __future__ import annotations

from equiv.history import Turn, nights, turns
from equiv.journal import Run
from equiv.records import Status, Verdict

DEVICE = "emulated:sm_90a"


def verdict(case: str, status: Status, seed: int = 1, gap: str = "") -> Verdict:
    return Verdict(case, DEVICE, seed, status, "said", gap=gap)


def run(started: str, *verdicts: Verdict, shard: str = "", version: str = "3.8.0") -> Run:
    settings = {"shard": shard} if shard else {}
    return Run((), verdicts, {"triton": version}, started, "", settings)


def test_runs_stand_in_the_order_of_time_whatever_the_order_of_their_journals() -> None:
    found = nights([run("2026-01-02"), run("2026-01-01"), run("2026-01-03")])
    assert [night.started for night in found] == ["2026-01-01", "2026-01-02", "2026-01-03"]


def test_shards_are_put_together_and_a_missing_one_is_named() -> None:
    first = run("2026-01-01T22:00", verdict("p::a", Status.IDENTICAL), shard="1/3")
    third = run("2026-01-02T03:00", verdict("p::c", Status.MISMATCH), shard="3/3")
    (night,) = nights([third, first])
    assert (night.started, night.missing) == ("2026-01-01T22:00", ("2/3",))
    assert [one.case for one in night.verdicts] == ["p::a", "p::c"]
    second = run("2026-01-01T23:00", verdict("p::b", Status.IDENTICAL), shard="2/3")
    (night,) = nights([third, first, second])
    assert night.missing == ()
    assert [one.case for one in night.verdicts] == ["p::a", "p::b", "p::c"]


def test_shards_of_another_environment_or_number_are_another_run() -> None:
    other = run("2026-01-02", shard="2/2", version="3.6.0")
    assert [night.missing for night in nights([run("2026-01-01T23:00", shard="1/2"), other])] == [("2/2",), ("1/2",)]
    assert len(nights([run("2026-01-01", shard="1/2"), run("2026-01-01", shard="2/3")])) == 2


def test_the_same_shards_night_after_night_are_a_run_each() -> None:
    series = [run(f"2026-01-0{day}T2{at}:00", shard=f"{at}/2") for day in (1, 2, 3) for at in (1, 2)]
    found = nights(series)
    assert [(night.started, night.missing) for night in found] == [(f"2026-01-0{day}T21:00", ()) for day in (1, 2, 3)]


def test_a_shard_that_a_night_lacks_is_not_taken_from_the_next_one() -> None:
    series = [run("2026-01-01T21:00", shard="1/2"), *(run(f"2026-01-02T2{at}:00", shard=f"{at}/2") for at in (2, 1))]
    assert [night.missing for night in nights(series)] == [("2/2",), ()]
    again = nights([run("2026-01-01T21:00", shard="1/2"), run("2026-01-01T22:00", shard="1/2")])
    assert [night.missing for night in again] == [("2/2",), ("2/2",)]


def test_a_bad_case_is_dated_by_the_first_run_of_its_present_series() -> None:
    series = {
        "p::fresh": [Status.IDENTICAL, Status.REORDERED, Status.MISMATCH],
        "p::again": [Status.MISMATCH, Status.IDENTICAL, Status.ERROR],
        "p::always": [Status.NOT_RUN, Status.MISMATCH, Status.MISMATCH],
        "p::mended": [Status.MISMATCH, Status.MISMATCH, Status.IDENTICAL],
    }
    found = nights(
        [run(f"t{at}", *(verdict(case, statuses[at]) for case, statuses in series.items())) for at in range(3)]
    )
    assert turns(found) == (
        Turn("p::again", DEVICE, Status.ERROR, "t2", "t1"),
        Turn("p::always", DEVICE, Status.MISMATCH, "t0", ""),
        Turn("p::fresh", DEVICE, Status.MISMATCH, "t2", "t1"),
    )


def test_a_case_that_the_newest_run_does_not_have_is_judged_by_the_last_one_that_has_it() -> None:
    found = nights([run("t0", verdict("p::a", Status.MISMATCH)), run("t1", verdict("p::b", Status.IDENTICAL))])
    assert [(one.case, one.since) for one in turns(found)] == [("p::a", "t0")]


def test_a_known_gap_is_not_bad_and_of_several_seeds_the_worst_counts() -> None:
    (night,) = nights(
        [
            run(
                "t0",
                verdict("p::gap", Status.MISMATCH, gap="known until 2030"),
                verdict("p::a", Status.IDENTICAL, 1),
                verdict("p::a", Status.MISMATCH, 2),
            )
        ]
    )
    assert night.statuses == {("p::gap", DEVICE): Status.UNSUPPORTED, ("p::a", DEVICE): Status.MISMATCH}
