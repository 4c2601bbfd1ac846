"""Tensors that are alive, and memory that is there, by address."""

from __future__ import annotations

import gc
import mmap

import numpy as np
import torch

from equiv.emulator.own_memory import live_tensors, mapped


def test_one_live_tensor_is_found_for_each_address_in_its_storage_however_old() -> None:
    old = torch.arange(8.0)
    gc.collect()
    young = torch.zeros(4, dtype=torch.uint8)
    nowhere = 1 << 45
    found = [tensor for _, tensor in live_tensors([young.data_ptr() + 3, old.data_ptr() + 31, nowhere])]
    assert {one.untyped_storage().data_ptr() for one in found} == {old.data_ptr(), young.data_ptr()}
    assert list(live_tensors([nowhere])) == []


def test_addresses_are_mapped_where_the_process_has_memory() -> None:
    pages = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    start = int(np.frombuffer(pages, np.uint8).ctypes.data)
    inside = {start, start + 3 * mmap.PAGESIZE - 1}
    assert mapped({*inside, 1 << 16, (1 << 47) - 1}) == inside
    assert mapped(set()) == set()
