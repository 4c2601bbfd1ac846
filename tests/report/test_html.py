"""The page: whole without a network, everything escaped, numbers where they belong."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING

import numpy as np
import pytest

from equiv.compare import compare_bits
from equiv.history import Night, Turn
from equiv.records import OutputSpec, OutputVerdict, Status, Verdict
from equiv.report import charts, html

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from equiv.records import Difference


class Balanced(HTMLParser):
    """Fails on a tag that is not closed in its order, and keeps what would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        self.fetched += [str(value) for name, value in attrs if name in {"src", "href"}]

    def handle_startendtag(self, _tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [str(value) for name, value in attrs if name in {"src", "href"}]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def difference() -> Difference:
    left = np.arange(200, dtype=np.float32).reshape(4, 50).view(np.uint32)
    right = left.copy()
    right[2, 10:20] += np.arange(1, 11, dtype=np.uint32)
    found = compare_bits(OutputSpec("y", "f32", ("row", "channel"), "bitwise", ""), "model", left, "candidate", right)
    assert found is not None
    return found


def night(started: str, *statuses: Status) -> Night:
    verdicts = []
    for at, status in enumerate(statuses):
        output = OutputVerdict("y", status, "said", (difference(),) if status is Status.MISMATCH else (), "", 0.25)
        verdicts.append(Verdict(f"p::<c{at}>", "emulated:sm_90a", 1, status, "said", (output,)))
    return Night(started, {"triton": "3.8.0"}, (), tuple(verdicts))


def page(*nights: Night, turns: tuple[Turn, ...] = ()) -> str:
    return page_of({"run": (nights, turns)})


def page_of(series: Mapping[str, tuple[Sequence[Night], Sequence[Turn]]]) -> str:
    said = html.render(series)
    parser = Balanced()
    parser.feed(said)
    assert parser.open == []
    assert parser.fetched == []
    return said


def test_a_difference_carries_its_distances_and_places_to_the_page() -> None:
    one = difference()
    assert one.ulps == (1, 2, 4, 3)  # 1; 2, 3; 4 to 7; 8 to 10
    assert [sum(row) for row in one.grid] == [0, 0, 10, 0]
    said = page(night("t0", Status.MISMATCH))
    assert "<title>4-7: 4 elements</title>" in said
    assert "<title>part 2, position 10: 1</title>" in said
    assert "y: 10 of 200 differ, model against candidate" in said
    assert said.count("<figcaption>along the last dimension</figcaption>") == 1
    assert re.search(r"<title>2: 10 elements</title>.*<figcaption>along all others</figcaption>", said)


def test_one_distance_is_said_and_not_drawn() -> None:
    one = replace(difference(), ulps=(10,))
    output = OutputVerdict("y", Status.MISMATCH, "said", (one,), "", None)
    verdicts = (Verdict("p::c", "emulated:sm_90a", 1, Status.MISMATCH, "said", (output,)),)
    said = page(Night("t0", {}, (), verdicts))
    assert "<p>distance in ulps: 1 in 10 elements</p>" in said
    assert "<figcaption>distance in ulps</figcaption>" not in said


def test_a_full_heat_map_takes_less_than_80_kilobytes() -> None:
    said = charts.heat([[at % 7 for at in range(64)]] * 16, "part", "position")
    assert len(said) < 80_000  # was 130,000 with an opacity and a size in each cell
    assert set(re.findall(r'class="(h\d)"', said)) == {
        "h0",
        "h2",
        "h3",
        "h4",
        "h6",
        "h7",
        "h8",
    }


def test_names_are_escaped_and_the_title_says_what_fails() -> None:
    said = page(night("t0", Status.IDENTICAL, Status.MISMATCH))
    assert "<c1>" not in said
    assert "p::&lt;c1&gt; on emulated:sm_90a" in said
    assert "<title>equiv: 1 of 2 case(s) fail</title>" in said
    assert "<title>equiv: every case is as declared</title>" in page(night("t0", Status.IDENTICAL))


def test_matrices_are_a_part_of_their_own() -> None:
    good, bad = night("t0", Status.IDENTICAL), night("t1", Status.MISMATCH)
    said = page_of({"run": ([good], ()), "determinism": ([good, bad], ())})
    first, second = "equiv: every case is as declared", "equiv determinism: 1 of 1 case(s) fail"
    assert f"<title>{first}; {second}</title>" in said
    assert re.findall(r"<h1>(.*?)</h1><p>run begun (t\d);", said) == [(first, "t0"), (second, "t1")]
    assert said.count("<h2>Runs</h2>") == 1


def test_many_runs_have_a_strip_and_a_date_for_what_fails() -> None:
    turn = Turn("p::<c0>", "emulated:sm_90a", Status.MISMATCH, "t1", "t0")
    said = page(night("t0", Status.IDENTICAL), night("t1", Status.MISMATCH), turns=(turn,))
    assert re.search(r'class="cell IDENTICAL" title="t0: IDENTICAL".*class="cell MISMATCH" title="t1: MISMATCH"', said)
    assert "<th>first bad run</th>" in said
    assert "<td>t1</td><td>t0</td>" in said


def test_the_envelope_s_use_names_the_case_that_used_most() -> None:
    assert "<title>25.0%</title></rect></svg></td><td>25.0%</td><td>p::&lt;c0&gt; on emulated:sm_90a</td>" in page(
        night("t0", Status.REORDERED)
    )


def test_a_missing_shard_is_on_the_page() -> None:
    whole = night("t0", Status.IDENTICAL)
    assert "shard 2/3 is missing" in page(Night(whole.started, whole.environment, ("2/3",), whole.verdicts))


@pytest.mark.parametrize(("used", "width"), [(0.0, 0), (0.5, 60), (1.0, 120), (7.0, 120)])
def test_a_share_fills_its_bar_and_no_more(used: float, width: int) -> None:
    assert f'<rect class="mark" x="0" y="2" width="{width}"' in charts.share(used)


def test_bars_are_as_high_as_their_counts_and_what_is_there_is_seen() -> None:
    said = charts.bars([0, 1, 1000], ["a", "b", "<c>"], "elements")
    assert re.findall(r'height="(\d+)"><title>', said) == ["0", "1", str(charts.BAR_HEIGHT)]
    assert "&lt;c&gt;: 1000 elements" in said
