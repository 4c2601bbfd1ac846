"""What lies at addresses of this process: tensors that are alive, or anything at all."""

from __future__ import annotations

import gc
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def live_tensors(addresses: Sequence[int]) -> Iterator[tuple[str, Any]]:
    """("tensor", one live CPU tensor) for each address that lies in the storage of one; young ones are found first."""
    import torch

    wanted = set(addresses)
    for candidate in chain.from_iterable(reversed(gc.get_objects(age)) for age in range(3)):
        if not wanted:
            return
        if type(candidate) not in {torch.Tensor, torch.nn.Parameter} or candidate.device.type != "cpu":
            continue
        if candidate.layout is not torch.strided:
            continue
        storage = candidate.untyped_storage()
        inside = {one for one in wanted if storage.data_ptr() <= one < storage.data_ptr() + storage.nbytes()}
        if inside:
            wanted -= inside
            yield "tensor", candidate


def mapped(addresses: set[int]) -> set[int]:
    """Those of some addresses at which this process has memory."""
    waiting = sorted(addresses, reverse=True)
    found = set()
    with Path("/proc/self/maps").open() as file:  # ascending
        for line in file:
            low, _, high = line.split(" ", 1)[0].partition("-")
            start, end = int(low, 16), int(high, 16)
            while waiting and waiting[-1] < end:
                address = waiting.pop()
                if start <= address:
                    found.add(address)
            if not waiting:
                break
    return found
