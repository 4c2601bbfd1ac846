"""Triton's autotuning on an emulated device: the configuration that takes the fewest warp instructions.

An emulator's time says nothing about a GPU, and a choice that depends on time cannot be repeated. So each configuration
runs once and its warp instructions count as its time, always the same for the same launch; of equals the first in the
kernel's list wins (`min` of Triton's tuner). All else is Triton's: pruning, hooks, `reset_to_zero`, `restore_value`,
configurations that do not fit, the final launch with the winner.

What was chosen is remembered for the outermost `active` block and never read from or written to disk, so that neither
earlier runs, nor a GPU, nor the other architecture decide. A kernel's own `do_bench`, `warmup` and `rep` do nothing.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from equiv.emulator.scope import replaced

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class Tuning:
    """What tuners of one activation know.

    Attributes:
        trial: a configuration is being tried.
        executed: warp instructions since the activation began.
    """

    def __init__(self) -> None:
        self.trial = False
        self.executed = 0
        self._chosen: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()

    def benchmark(
        self,
        call: Callable[[], object],
        *,
        quantiles: Sequence[float] | None = None,
        **_: object,
    ) -> float | list[float]:
        """Runs `call` once; its warp instructions, once for each quantile."""
        before, outer = self.executed, self.trial
        self.trial = True
        try:
            call()
        finally:
            self.trial = outer
        cost = float(self.executed - before)
        return cost if quantiles is None else [cost] * len(quantiles)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Tuners of this process ask this object inside the block."""
        from triton.runtime.autotuner import Autotuner

        stock = Autotuner.run

        def run(tuner: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
            with ExitStack() as stack:
                for name, value in (
                    ("cache", self._chosen.setdefault(tuner, {})),
                    ("cache_results", False),
                    ("do_bench", self.benchmark),
                ):
                    stack.enter_context(replaced(tuner, name, value))
                return stock(tuner, *arguments, **named)

        with replaced(Autotuner, "run", run):
            yield
