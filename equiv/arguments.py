"""Types of command-line arguments."""

from __future__ import annotations

import argparse
import contextlib

LONGEST = 1e6
"""Seconds that a case can be given at most; a wait for its worker cannot be longer than 2^31 ms."""


def positive(number: str) -> int:
    """A whole number of 1 or more; argparse reports anything else."""
    if not number.isdecimal() or int(number) < 1:
        raise argparse.ArgumentTypeError(f"{number} is not 1 or more")
    return int(number)


def seconds(number: str) -> float:
    """A number of seconds above 0; argparse reports anything else."""
    with contextlib.suppress(ValueError):
        if 0 < float(number) <= LONGEST:
            return float(number)
    raise argparse.ArgumentTypeError(f"{number} is no number of seconds above 0, {LONGEST:g} at most")
