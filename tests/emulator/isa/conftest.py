"""A sample of what these tests launch is run by the portable engine too, which must leave the same bytes.

`EQUIV_BOTH_ENGINES=all` in the environment takes every launch instead; that lasts minutes.
"""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING

import both_engines
import ptx_run
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ptx_run import Array

    from equiv.emulator.engine import LaunchConfig

SHARE = 4
"""One of so many launches, chosen by a checksum of its PTX."""
MOST = 3000
"""Warp instructions of a launch in the sample."""


def _observe(text: str, config: LaunchConfig, arch: str, before: list[Array], after: list[Array]) -> None:
    if os.environ.get("EQUIV_BOTH_ENGINES") == "all":
        both_engines.agree_in_place(text, config, arch, before, after)
    elif zlib.crc32(text.encode()) % SHARE == 0:
        both_engines.agree_in_place(text, config, arch, before, after, most=MOST)


@pytest.fixture(autouse=True)
def _in_both_engines() -> Iterator[None]:
    ptx_run.OBSERVERS.append(_observe)
    yield
    ptx_run.OBSERVERS.remove(_observe)
