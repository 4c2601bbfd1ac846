"""Work in forked processes."""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest

from equiv.mutate import pool


def test_work_comes_back_from_processes_and_a_dead_one_costs_its_own() -> None:
    def do(number: int) -> int:
        if number == 3:
            os.kill(os.getpid(), signal.SIGSEGV)
        return number * number

    found = dict(pool.work(6, do, lambda number, how: f"{number}: {how}", 2))
    assert found == {0: 0, 1: 1, 2: 4, 3: "3: signal SIGSEGV", 4: 16, 5: 25}


def test_what_is_in_hand_when_time_is_over_is_done_and_nothing_else_is_begun() -> None:
    begun: list[int] = []

    def late() -> bool:
        begun.append(len(begun))
        return len(begun) > 2

    assert dict(pool.work(9, lambda number: number, lambda *_: None, 1, late)) == {0: 0, 1: 1}
    assert not dict(pool.work(9, lambda number: number, lambda *_: None, 2, lambda: True))


def test_a_slow_piece_of_work_in_hand_is_waited_for() -> None:
    def do(number: int) -> int:
        time.sleep(0.5 * (number == 0))
        return number

    done: list[int] = []
    for number, _ in pool.work(99, do, lambda *_: None, 2, lambda: bool(done)):
        done.append(number)
    assert done[0] != 0
    assert 0 in done
    assert len(done) < 5


def test_an_error_in_a_process_is_raised_here() -> None:
    def do(_: int) -> int:
        raise ValueError("a fault of equiv")

    with pytest.raises(ValueError, match="a fault of equiv"):
        list(pool.work(2, do, lambda *_: None, 1))


@pytest.mark.parametrize(
    ("last", "others", "number"),
    [(0, [1], 4), (0, [4], 4), (1, [0], 5), (None, [0], 3), (2, [0, 1], 5), (2, [0, 1, 5], 3)],
)
def test_a_process_stays_with_its_kind_and_then_takes_what_is_nobodys(
    last: int | None, others: list[int], number: int
) -> None:
    kinds = ["a", "b", "c", "b", "a", "d"]
    waiting = deque([3, 4, 5])
    mine: Any = SimpleNamespace(last=last)
    workers: Any = [mine, *(SimpleNamespace(last=other) for other in others), SimpleNamespace(last=None)]
    if last == 1:
        waiting.remove(3)
    assert pool._next(waiting, kinds, mine, workers) == number
    assert number not in waiting


def test_work_of_kinds_is_all_done() -> None:
    found = dict(pool.work(7, lambda number: -number, lambda *_: None, 2, kinds=list("abacaba")))
    assert found == {number: -number for number in range(7)}
