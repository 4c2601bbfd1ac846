"""Ways to run a party that must not change its results: on scratch full of other bits, on another stream, as a graph.

Each is an `around` of `equiv.runner.run_party`: it gets the party's call and what restores a GPU's memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from equiv.runner import Around

FRESH = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
"""torch's functions that give memory as it is found."""
NEIGHBOUR = 1 << 26
"""Elements of the tensor that a busy stream works on: 256 MiB, enough to keep every multiprocessor."""
ROUNDS = 50


def dirtied(seed: int) -> Around:
    """Every tensor that the party makes without filling it starts as random bits, floats (but E8M0) as NaN."""

    def around(call: Callable[[], None], _restore: Callable[[], None]) -> None:
        with _dirty(seed):
            call()

    return around


def _dirty(seed: int) -> Any:  # noqa: ANN401  a torch dispatch mode
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Dirty(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
        generators: dict[str, Any] = {}  # noqa: RUF012  one object lives as long as its class

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401
            made = func(*args, **(kwargs or {}))
            if func.overloadpacket.__name__ in FRESH and made.device.type in {"cpu", "cuda"}:
                self.fill(made)
            return made

        def fill(self, made: Any) -> None:  # noqa: ANN401  a torch.Tensor
            where = str(made.device)
            if where not in self.generators:
                self.generators[where] = torch.Generator(made.device).manual_seed(seed)
            memory = torch.empty(0, dtype=torch.uint8, device=made.device).set_(made.untyped_storage())
            words = torch.randint(
                -(1 << 15),
                1 << 15,
                (-(-memory.numel() // 2),),
                dtype=torch.int16,
                device=made.device,
                generator=self.generators[where],
            )
            if made.is_floating_point():
                words |= 0x7F7F if made.element_size() == 1 else 0x7FF0  # any two, or four of them, are NaN
            memory.copy_(words.view(torch.uint8)[: memory.numel()])

    return Dirty()


def beside_a_busy_stream(call: Callable[[], None], _restore: Callable[[], None]) -> None:
    """On a stream of its own, while another stream keeps the multiprocessors busy."""
    import torch

    side, neighbour = torch.cuda.Stream(), torch.cuda.Stream()
    for stream in (side, neighbour):
        stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(neighbour):
        busy = torch.ones(NEIGHBOUR, device="cuda")
        for _ in range(ROUNDS):
            busy.sin_()
    with torch.cuda.stream(side):
        call()
    torch.cuda.synchronize()


def replayed(times: int) -> Around:
    """Captured in a CUDA graph, which runs nothing yet, and replayed, each time on memory as a run finds it."""

    def around(call: Callable[[], None], restore: Callable[[], None]) -> None:
        import torch

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        for _ in range(times):
            restore()
            torch.cuda.synchronize()  # the copies went to another stream
            graph.replay()
            torch.cuda.synchronize()

    return around
