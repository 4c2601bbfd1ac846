"""Compiled functions are kept by variant and architecture, and operands leave sizes and pitches to run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from cuda.bindings.driver import CUstream
from cutlass import cute

from equiv.cute import host

if TYPE_CHECKING:
    from collections.abc import Hashable


class Adder:
    """Stands for a kernel object; what `cute.compile` would make of it is counted instead."""

    def __init__(self, amount: int) -> None:
        self.amount = amount

    @property
    def variant(self) -> Hashable:
        return (self.amount,)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """(amount, architecture) of every compilation."""
    calls: list[tuple[int, str]] = []

    def compile_once(operator: Adder, *_: Any) -> Any:
        calls.append((operator.amount, host.architecture()))
        return object()

    monkeypatch.setattr(cute, "compile", compile_once)
    monkeypatch.setattr(host, "_compiled", {})
    return calls


def test_a_function_is_compiled_once_for_a_variant_an_architecture_and_a_kind_of_device(
    made: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    arch = "sm_90a"
    monkeypatch.setattr(host, "architecture", lambda: arch)
    first = host.compiled(Adder(1), (), on_gpu=False)
    assert host.compiled(Adder(1), (), on_gpu=False) is first
    assert host.compiled(Adder(2), (), on_gpu=False) is not first
    assert host.compiled(Adder(1), (), on_gpu=True) is not first
    arch = "sm_100a"
    assert host.compiled(Adder(1), (), on_gpu=False) is not first
    assert made == [(1, "sm_90a"), (2, "sm_90a"), (1, "sm_90a"), (1, "sm_100a")]


def test_a_tensor_in_host_memory_goes_to_the_null_stream() -> None:
    stream = host.stream_of(torch.zeros(1))
    assert isinstance(stream, CUstream)
    assert int(stream) == 0


def test_an_operand_keeps_only_the_dense_last_dimension_static() -> None:
    assert str(host.dynamic(torch.zeros(3, 8)[:, :5])).endswith("(?,?):(?{i64},1)>")
