"""Other people's kernels: one that takes the candidate's place in a pair, of which all else stays.

    KERNEL = Kernel(
        entry="my_package.kernels:quantise",                  # quantise(x=..., out=..., eps=...)
        packages=("triton",),
        pair="dsa_index",
        summary="per-head FP8 quantisation of the query",
        arguments={"x": tensor("q"), "out": tensor("q_out"), "eps": axis("eps"), "block": 64},
        supports={"format": ("fp8",)},
        omits={"key_codes": "it inserts no key"},
    )

Named in the entry-point group `equiv.kernels` (`my_quantise = "my_package.equivalence:KERNEL"`), it makes the pair
`dsa_index+my_quantise` with the cases of `dsa_index`. As long as it declares nothing, its outputs are judged by what
any order of its sums and any variant of the ledger's rows may yield: WITHIN at best.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from equiv import entries, pairs
from equiv.errors import UsageError
from equiv.pairs import JOINT, Party

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from equiv.pairs import Pair
    from equiv.records import AxisValue, Bits, Case, OutputSpec

GROUP = "equiv.kernels"


@dataclass(frozen=True, slots=True)
class FromTensor:
    """An argument that is a tensor of the pair; `optional`: None in cases that have no such tensor."""

    name: str
    optional: bool = False

    def __call__(self, case: Case, tensors: Mapping[str, Any]) -> Any:  # noqa: ANN401  a torch.Tensor or None
        """The tensor.

        Raises:
            UsageError: the case has none of that name.
        """
        if self.name not in tensors and not self.optional:
            raise UsageError(f"{case.name} has no tensor {self.name!r}; its tensors: {', '.join(tensors)}")
        return tensors.get(self.name)


@dataclass(frozen=True, slots=True)
class FromAxis:
    """An argument that is the value of one of the pair's axes."""

    name: str

    def __call__(self, case: Case, tensors: Mapping[str, Any]) -> AxisValue:  # noqa: ARG002  called like FromTensor
        """The value."""
        return case.axes[self.name]


def tensor(name: str, *, optional: bool = False) -> FromTensor:
    """The pair's tensor of that name; what the kernel writes into it is its result."""
    return FromTensor(name, optional)


def axis(name: str) -> FromAxis:
    """The value of the pair's axis of that name."""
    return FromAxis(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel(Party):
    """A party that other people wrote, with how a pair's tensors become its arguments.

    Attributes:
        entry: `module:function` of the kernel's host function, called with `arguments` by name.
        pair: the pair whose candidate it stands in for.
        summary: one line for `equiv list`.
        arguments: argument -> `tensor(...)`, `axis(...)`, any other function of (case, tensors), or a constant. State
            that is updated in place is a tensor like any other. Empty: the function is called as (case, tensors).
        returns: names of tensors that get what the function returns, in this order; None where it writes in place.
        supports: axis -> the values that it can do; other cases are UNSUPPORTED.
        omits: logical output -> why the kernel does not make it: neither compared nor counted.
        declaration: (toolchain, architecture, form) -> what it declares, or None; no function: nothing is declared.
        forms: forms that it declares separately. form: case -> which of them serves it.
    """

    pair: str
    summary: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    returns: tuple[str | None, ...] = ()
    supports: Mapping[str, tuple[AxisValue, ...]] = field(default_factory=dict)
    omits: Mapping[str, str] = field(default_factory=dict)
    declaration: Callable[[Mapping[str, str], str, str], Any] | None = None
    forms: tuple[str, ...] = ()
    form: Callable[[Case], str] | None = None

    def load(self) -> Callable[[Case, Mapping[str, Any]], None]:
        """The kernel's function, called as a party is."""
        function: Callable[..., Any] = Party.load(self)
        if not self.arguments:
            return function

        def call(case: Case, tensors: Mapping[str, Any]) -> None:
            found = function(**{name: _given(value, case, tensors) for name, value in self.arguments.items()})
            if self.returns:
                self._keep(found, case, tensors)

        return call

    def unsupported(self, case: Case) -> str:
        """`axis:format=fp4` for the first axis whose value the kernel does not support, else ""."""
        for name, values in self.supports.items():
            if case.axes[name] not in values:
                return f"axis:{name}={case.axes[name]}"
        return ""

    def remarks(self, case: Case) -> tuple[str, ...]:
        """What it leaves out of a case's outputs, and why."""
        del case
        return tuple(f"{name} is not compared: {why}" for name, why in self.omits.items())

    def _keep(self, found: Any, case: Case, tensors: Mapping[str, Any]) -> None:  # noqa: ANN401  what it returned
        results = found if isinstance(found, (tuple, list)) else (found,)
        if len(results) != len(self.returns):
            raise UsageError(f"{self.entry} returned {len(results)} value(s), expected {len(self.returns)}")
        for name, result in zip(self.returns, results, strict=True):
            if name is None:
                continue
            target = FromTensor(name)(case, tensors)
            if result.shape != target.shape or result.dtype != target.dtype:
                said = f"{result.dtype} {tuple(result.shape)}, expected {target.dtype} {tuple(target.shape)}"
                raise UsageError(f"{self.entry} returned for {name!r} {said}")
            target.copy_(result)


def _given(value: Any, case: Case, tensors: Mapping[str, Any]) -> Any:  # noqa: ANN401  whatever a kernel takes
    return value(case, tensors) if callable(value) else value


def get(name: str) -> Kernel:
    """The kernel of that entry point, which stands in for the candidate of an existing pair.

    Raises:
        UsageError: there is none, it cannot be loaded or gives no `Kernel`, or it names a pair, an axis or a value of
            an axis that does not exist.
    """
    kernel = entries.load(GROUP, name, Kernel)
    what = f"entry point {GROUP} {name!r} ({entries.point(GROUP, name).value})"
    if kernel.pair not in pairs.names():
        raise UsageError(f"{what}: no pair named {kernel.pair!r}; known: {', '.join(pairs.names())}")
    if kernel.returns and not kernel.arguments:
        raise UsageError(f"{what}: `returns` needs `arguments`: what is called as a party is returns nothing")
    known = {one.name: one for one in pairs.get(kernel.pair).axes}
    used = [value.name for value in kernel.arguments.values() if isinstance(value, FromAxis)]
    for one in (*used, *kernel.supports):
        if one not in known:
            raise UsageError(f"{what}: {kernel.pair} has no axis {one!r}; known: {', '.join(known)}")
    for one, values in kernel.supports.items():
        wrong = [value for value in values if known[one].choices and value not in known[one].choices]
        if wrong or not values:
            choices = ", ".join(map(repr, known[one].choices)) or "at least one value"
            raise UsageError(f"{what}: supports.{one}: expected {choices}, got {', '.join(map(repr, wrong)) or 'none'}")
    return kernel


def in_place(pair: Pair, name: str) -> Pair:
    """The pair with a kernel as its candidate, called `PAIR+NAME`.

    Raises:
        UsageError: as `get`, or the kernel is made for another pair.
    """
    kernel = get(name)
    if kernel.pair != pair.name:
        raise UsageError(f"kernel {name!r} is made for {kernel.pair}: {kernel.pair}{JOINT}{name}")

    def declaration(party: str, toolchain: Mapping[str, str], arch: str, form: str) -> Any:  # noqa: ANN401  as Pair's
        if party == "oracle":
            return pair.declaration(party, toolchain, arch, form)
        return kernel.declaration and kernel.declaration(toolchain, arch, form)

    def form(party: str, case: Case, arch: str) -> str:
        chosen = kernel.form(case) if party == "candidate" and kernel.form else ""
        return pair.form(party, case, arch) if party == "oracle" and pair.form else chosen

    def output_specs(case: Case) -> tuple[OutputSpec, ...]:
        kept = tuple(spec for spec in pair.output_specs(case) if spec.name not in kernel.omits)
        if not kept:
            raise UsageError(f"kernel {name!r} omits every output of {case.name}: nothing is left to compare")
        return kept

    def undefined(case: Case, inputs: Mapping[str, Bits]) -> dict[str, Bits]:
        return {output: mask for output, mask in pair.undefined(case, inputs).items() if output not in kernel.omits}

    def quantised(case: Case, inputs: Mapping[str, Bits], declared: Any) -> tuple[Any, ...]:  # noqa: ANN401  as Pair's
        found = pair.quantised(case, inputs, declared) if pair.quantised else ()
        return tuple(one for one in found if not {one.codes, one.scales} & set(kernel.omits))

    forms = {"oracle": pair.forms.get("oracle", ()), "candidate": kernel.forms}
    return replace(
        pair,
        name=f"{pair.name}{JOINT}{name}",
        summary=kernel.summary,
        candidate=kernel,
        output_specs=output_specs,
        declaration=declaration,
        undefined=undefined,
        quantised=pair.quantised and quantised,
        forms={party: some for party, some in forms.items() if some},
        form=form,
    )


@dataclass(frozen=True, slots=True)
class Found:
    """What an entry point of the group gives: a kernel, or None and `problem`."""

    name: str
    kernel: Kernel | None
    problem: str = ""


def found() -> Sequence[Found]:
    """Every kernel that is installed, by name; those that cannot be loaded with what is wrong."""
    listed = []
    for name in entries.names(GROUP):
        try:
            listed.append(Found(name, get(name)))
        except UsageError as error:
            listed.append(Found(name, None, str(error)))
    return listed
