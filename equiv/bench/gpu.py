"""How fast kernels are on a GPU: launches replayed from a CUDA graph, and the card's copy speed beside them.

A graph leaves out what the host costs a launch, as a server that replays graphs does. Each graph holds several calls,
enough for a replay to take about a millisecond; the fastest replay is the figure, because everything that disturbs a
measurement makes it longer. Data that fits the L2 cache stays there between calls, as it does between layers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from equiv.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

WARM: Final = 3
REPLAYS: Final = 20
SPAN: Final = 1e-3
"""Seconds that one replay should take at least."""
MOST: Final = 64
"""Calls in one graph at most."""
COPIED: Final = 1 << 30
"""Elements (float32) of the buffer whose copy measures the card's speed: far more than its L2 cache holds."""


def require_gpu() -> Any:  # noqa: ANN401  the torch module
    """torch, if it sees a GPU.

    Raises:
        UnsupportedError: it does not.
    """
    import torch

    if not torch.cuda.is_available():
        raise UnsupportedError("gpu", "this benchmark measures a GPU and there is none")
    return torch


def replayed(call: Callable[[], None], replays: int = REPLAYS) -> float:
    """Seconds of one `call`, which launches kernels on the current stream: the fastest replay of a graph of them.

    The graph repeats the call back to back: what a launch may do before its predecessor ends, as the fused kernels load
    weights, overlaps that one and is not in the figure.

    Raises:
        UnsupportedError: there is no GPU.
    """
    torch = require_gpu()
    stream = torch.cuda.Stream()
    # The operands may still be in the making: what a kernel took for a slot then could lie anywhere.
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM):
            call()
        # A call by itself takes the host longer than the GPU: only a replay tells how many fit into the span.
        once = _graph(torch, call, 1, stream)
        calls = max(1, min(MOST, round(SPAN / min(_seconds(torch, once.replay) for _ in range(WARM)))))
        graph = _graph(torch, call, calls, stream)
        return min(_seconds(torch, graph.replay) for _ in range(replays)) / calls


def _graph(torch: Any, call: Callable[[], None], calls: int, stream: Any) -> Any:  # noqa: ANN401
    """A graph of so many calls that has been replayed once."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            call()
    graph.replay()
    return graph


def _seconds(torch: Any, work: Callable[[], object]) -> float:  # noqa: ANN401
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def copy_speed(repetitions: int = REPLAYS) -> float:
    """Bytes a second, read and written together: the faster of the driver's copy and a kernel that copies."""
    torch = require_gpu()
    source = torch.zeros(COPIED, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    works: tuple[Callable[[], object], ...] = (
        lambda: target.copy_(source),
        lambda: torch.neg(source, out=target),
    )
    for work in works:
        work()
    seconds = min(_seconds(torch, work) for work in works for _ in range(repetitions))
    return float(2 * source.numel() * source.element_size() / seconds)
