from __future__ import annotations

import pytest

from equiv.emulator.memory import Memory, Region, nearest
from equiv.errors import DeviceError


def test_a_byte_is_found_in_the_region_that_holds_it() -> None:
    memory = Memory()
    memory.register(2000, 100, "high")
    memory.register(1000, 50, "low", writable=False)
    assert [region.name for region in memory.regions] == ["low", "high"]
    assert memory.find(999) is None
    assert memory.find(1000) == Region(1000, 50, "low", writable=False)
    assert memory.find(1049) == Region(1000, 50, "low", writable=False)
    assert memory.find(1050) is None
    assert memory.find(2099) == Region(2000, 100, "high", writable=True)


def test_regions_may_touch_but_not_overlap() -> None:
    memory = Memory()
    memory.register(1000, 50, "a")
    memory.register(1050, 10, "b")
    memory.register(990, 10, "c")
    for address, nbytes, other in ((1049, 1, "a"), (985, 6, "c"), (900, 500, "c"), (1059, 5, "b")):
        with pytest.raises(DeviceError, match=f"`new` .* overlaps `{other}`"):
            memory.register(address, nbytes, "new")
    assert len(memory.regions) == 3


def test_an_empty_region_is_refused() -> None:
    with pytest.raises(DeviceError, match="`nothing` cannot be registered: 0 bytes at 0x3e8"):
        Memory().register(1000, 0, "nothing")


def test_unregistering_forgets_the_region_and_an_unknown_one_is_an_error() -> None:
    memory = Memory()
    memory.register(1000, 50, "a")
    memory.unregister(1000)
    assert memory.find(1000) is None
    with pytest.raises(DeviceError, match="no registered region starts at 0x3e8"):
        memory.unregister(1000)


def test_an_address_is_described_by_the_nearest_region() -> None:
    regions = (Region(1000, 100, "a", writable=True), Region(2000, 100, "b", writable=True))
    assert nearest(regions, 1116, 4) == "16 bytes past the end of `a` (100 bytes at 0x3e8)"
    assert nearest(regions, 1996, 8) == "4 bytes before the start of `b` (100 bytes at 0x7d0)"
    assert nearest(regions, 1100, 8) == "just past the end of `a` (100 bytes at 0x3e8)"
    assert nearest(regions, 1096, 8) == "at byte 96 of `a` (100 bytes at 0x3e8), 4 of 8 bytes past its end"
    assert nearest((), 1, 1) == "no memory is registered"
