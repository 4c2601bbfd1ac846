"""Memory that a party did not fill is full of other bits."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from equiv.determinism import ways

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

FLOATS = (torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2)


def made(seed: int) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}

    def call() -> None:
        found["f32"] = torch.empty((3, 5))
        found.update({str(kind): torch.empty(64, dtype=kind) for kind in FLOATS})
        found["bf16"] = torch.empty_like(torch.zeros(7, dtype=torch.bfloat16))
        found["strided"] = torch.empty_strided((2, 3), (8, 1))
        found["new"] = found["f32"].new_empty(9)
        found["i32"] = torch.empty(64, dtype=torch.int32)
        found["bytes"] = torch.empty(3, dtype=torch.uint8)
        found["none"] = torch.empty(0)
        found["zeros"] = torch.zeros(4)

    ways.dirtied(seed)(call, lambda: None)
    return found


def test_every_unfilled_float_is_nan_and_what_was_filled_stays() -> None:
    found = made(1)
    for name in ("f32", "bf16", "strided", "new", *map(str, FLOATS)):
        assert found[name].float().isnan().all(), name
    assert found["zeros"].tolist() == [0.0] * 4
    assert len(set(found["i32"].tolist())) > 60
    assert found["none"].numel() == 0


def test_the_bits_follow_the_seed() -> None:
    one, again, other = (made(seed)["i32"] for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_outside_the_call_memory_is_torch_s_own() -> None:
    made(1)
    assert _get_current_dispatch_mode() is None


def test_a_graph_is_captured_once_and_replayed_on_restored_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    class Graph:
        def replay(self) -> None:
            events.append("replay")

    @contextlib.contextmanager
    def capture(_graph: Graph) -> Iterator[None]:
        events.append("capture")
        yield
        events.append("captured")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: events.append("wait"))
    ways.replayed(2)(lambda: events.append("call"), lambda: events.append("restore"))
    assert events == ["capture", "call", "captured", *["restore", "wait", "replay", "wait"] * 2]
