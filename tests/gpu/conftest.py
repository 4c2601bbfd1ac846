"""Tests that need silicon: skipped, and counted as not run in the summary, where there is none."""

from __future__ import annotations

import pytest

from equiv.device import Device, device
from equiv.errors import UnsupportedError


@pytest.fixture
def gpu() -> Device:
    try:
        return device("cuda:0")
    except UnsupportedError as error:
        pytest.skip(str(error))
