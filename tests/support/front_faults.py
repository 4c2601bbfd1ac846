"""Candidates of `dsa_front` with a seeded fault each: the shipped kernel, a part exchanged when it is traced."""

from __future__ import annotations

import contextlib
from copy import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from dsa_faults import exchanged

from equiv.dsa_front import PAIR
from equiv.dsa_front.parties import candidate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from equiv.pairs import Pair
    from equiv.records import Case

FRONT = "equiv.cute.dsa.front"


def faulty(name: str) -> Pair:
    """The pair with the fault of that name (a function of this module) in its candidate."""
    return replace(PAIR, candidate=replace(PAIR.candidate, entry=f"front_faults:{name}"))


def altered(cta: Any, **changes: int) -> Any:
    """The CTA with other sizes in its plan."""
    plan, changed = cta.plan, copy(cta)
    names = [name for name in dir(plan) if not name.startswith("_") and not callable(getattr(plan, name))]
    changed.plan = SimpleNamespace(**({name: getattr(plan, name) for name in names} | changes))
    return changed


@contextlib.contextmanager
def overridden(name: str, method: Any) -> Iterator[None]:
    """`IndexFrontMma` with another method of that name."""
    from equiv.cute.dsa.front_host import FORMS

    faulty = type("Faulty", (FORMS["sm_100a"],), {name: method})
    with exchanged("equiv.cute.dsa.front_host.FORMS", {"sm_100a": faulty}):
        yield


def last_block_dropped(case: Case, tensors: Mapping[str, Any]) -> None:
    """The last 64 columns of a slice are not multiplied."""
    from equiv.cute.dsa.front import IndexFrontMma

    def multiply(self: Any, cta: Any) -> None:
        IndexFrontMma.multiply(self, altered(cta, blocks=cta.plan.blocks - 1))

    with overridden("multiply", multiply):
        candidate(case, tensors)


def slices_in_descending_order(case: Case, tensors: Mapping[str, Any]) -> None:
    """p3 + p2 + p1 + p0."""
    from cutlass import Float32

    from equiv.cute.dsa import front_epilogue
    from equiv.cute.shared import shared_vector

    class Descending(front_epilogue.MailboxColumns):
        def load4(self, column: Any) -> Any:
            parts = [
                shared_vector(Float32, self.at + (part * 128 * self.plan.mailbox_pitch + column) * 4, 4).load()
                for part in range(self.plan.split)
            ]
            total = parts.pop()
            while parts:
                total = total + parts.pop()
            return total

    with exchanged(f"{FRONT}.MailboxColumns", Descending):
        candidate(case, tensors)


def norm_rounded_twice(case: Case, tensors: Mapping[str, Any]) -> None:
    """BF16(BF16(x * rr) * gamma)."""
    from cutlass import BFloat16, Float32

    def scaled_chunk(x: Any, gamma: Any, factor: Any) -> Any:
        once = (x.to(Float32) * factor).to(BFloat16)
        return (once.to(Float32) * gamma.to(Float32)).to(BFloat16)

    with exchanged("equiv.cute.dsa.front_norm.scaled_chunk", scaled_chunk):
        candidate(case, tensors)


def scale_rounded_down(case: Case, tensors: Mapping[str, Any]) -> None:
    """The largest power of two <= amax / 448."""
    from cutlass import Float32, Uint32

    def pow2_floor(s: Any) -> Any:
        return (s.bitcast(Uint32) & 0x7F800000).bitcast(Float32)

    with exchanged("equiv.cute.dsa.front_epilogue.pow2_ceil", pow2_floor):
        candidate(case, tensors)


def accumulator_read_early(case: Case, tensors: Mapping[str, Any]) -> None:
    """The epilogue waits for the first weights instead of the last product."""
    from equiv.cute.dsa.front import IndexFrontMma
    from equiv.cute.dsa.front_cta import Cta

    class Early(Cta):
        @property
        def accumulated(self) -> Any:
            return self.weights_full(0)

    def sums(self: Any, cta: Any, channel: Any) -> Any:
        early = copy(cta)
        early.__class__ = Early
        return IndexFrontMma.sums(self, early, channel)

    with overridden("sums", sums):
        candidate(case, tensors)


def mailbox_expects_too_few(case: Case, tensors: Mapping[str, Any]) -> None:
    """The barrier of the partial sums is told of one column less than arrives."""
    from equiv.cute.dsa.front_cta import init_barriers

    def short(cta: Any, *others: Any) -> None:
        init_barriers(altered(cta, owned=cta.plan.owned - 1), *others)

    with exchanged(f"{FRONT}.init_barriers", short):
        candidate(case, tensors)
