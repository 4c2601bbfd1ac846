"""The command `equiv budget`: what every kernel of the cases takes of a multiprocessor, against what it may take.

Kernels are compiled and never executed (`emulator.compiling`): registers, stack, spills, shared memory and barriers of
a kernel are the largest of all its variants that the cases use. `cases/budgets/PAIR.toml` holds what they may be, for
an architecture and the versions that compile; a larger figure fails, as does what cannot be compiled. A kernel without
a budget is named and makes the exit code 3. `--update` writes what was found.
"""

from __future__ import annotations

import tomllib
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equiv import casefile, pairs, plan
from equiv.arguments import positive
from equiv.cache import write_atomic
from equiv.device import EMULATED
from equiv.errors import UsageError
from equiv.git import git
from equiv.packages import one_line
from equiv.report import budgeted
from equiv.terminal import kernel_name
from equiv.workers import default_jobs

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from equiv.pairs import Pair
    from equiv.records import Case

DEVICES = tuple(f"emulated:{arch}" for arch in EMULATED)
FIGURES = budgeted.FIGURES


@dataclass(frozen=True, slots=True)
class Use:
    """What a kernel takes at most.

    Attributes:
        kernel: its name without what compilers append.
        compiler: `triton 3.8.0`.
        registers: of a thread. stack: bytes of a thread. spills: instructions on local memory.
        shared: bytes, static and dynamic. barriers: named ones.
        variants: compiled images among the cases.
    """

    pair: str
    party: str
    kernel: str
    arch: str
    compiler: str
    registers: int
    stack: int
    spills: int
    shared: int
    barriers: int
    variants: int = 0

    @property
    def key(self) -> tuple[str, ...]:
        """What a budget is for."""
        return (self.pair, self.party, self.kernel, self.arch, self.compiler)

    def over(self, budget: Use) -> tuple[str, ...]:
        """Figures that are larger than a budget's."""
        return tuple(name for name in FIGURES if getattr(self, name) > getattr(budget, name))


def add_parser(commands: Any) -> None:  # noqa: ANN401
    """Adds `budget` to the commands."""
    budget = commands.add_parser("budget", help="registers, spills and shared memory of every kernel, compiled only")
    budget.add_argument("pairs", nargs="*", metavar="PAIR", help="default: all that have case files")
    budget.add_argument("--suite", action="append", default=[], metavar="S", help="cases of suite S (default pr)")
    budget.add_argument("--cases", type=Path, metavar="DIR", help="folder of case files")
    budget.add_argument(
        "--device", action="append", default=[], choices=DEVICES, metavar="D", help=f"{' or '.join(DEVICES)} (both)"
    )
    budget.add_argument(
        "--against",
        default="",
        metavar="FOLDER|REVISION",
        help="where the budgets are, a folder or a git revision (default: `budgets` beside the case files)",
    )
    budget.add_argument("--update", action="store_true", help="write what was found into the budgets beside the cases")
    budget.add_argument("--json", action="store_true", help="as JSON")
    budget.add_argument(
        "-j", "--jobs", type=positive, default=default_jobs(), metavar="N", help="processes (default: CPUs)"
    )
    budget.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    if options.update and options.against:
        raise UsageError("--update writes the budgets beside the case files; leave out --against")
    cases = plan.cases(options.cases, options.pairs, options.suite or ["pr"])
    names = tuple(dict.fromkeys(case.pair for case in cases))
    known = {use.key: use for name in names for use in _budgets(name, options)}
    devices = options.device or DEVICES
    found, failed = compiled(cases, devices, options.jobs)
    if options.update:
        for name in names:
            write(name, options.cases, [use for use in found if use.pair == name])
    said = budgeted.document if options.json else budgeted.render
    whole = not options.suite and not any("::" in one for one in options.pairs)
    asked = {use.key[:4] for use in known.values() if whole and f"emulated:{use.arch}" in devices}
    gone = sorted(asked - {use.key[:4] for use in found})
    print(said(found, known, failed, gone, updated=options.update), end="")
    over = not options.update and any(use.key in known and use.over(known[use.key]) for use in found)
    without = not found or (not options.update and any(use.key not in known for use in found))
    return 1 if over or failed else 3 if without else 0


def compiled(cases: Sequence[Case], devices: Iterable[str], jobs: int = 1) -> tuple[tuple[Use, ...], tuple[str, ...]]:
    """What the kernels of some cases take, sorted; and what could not be compiled, in words.

    Cases with the same axes compile the same and count once. Processes share the work by pair, device and axes.
    """
    distinct = {(case.pair, *case.axes.items()): case for case in cases}
    tasks = [(case, device) for device in devices for case in distinct.values()]
    parts = [tasks[at::jobs] for at in range(jobs)]
    if jobs == 1:
        answers = [measured(parts[0])]
    else:
        with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
            answers = list(pool.map(measured, parts))
    images: dict[tuple[str, ...], dict[str, Use]] = {}
    for uses, _ in answers:
        for image, use in uses:
            before = images.setdefault(use.key, {}).get(image)
            images[use.key][image] = use if before is None else _larger(before, use)
    found = []
    for variants in images.values():
        first, *others = variants.values()
        for other in others:
            first = _larger(first, other)
        found.append(replace(first, variants=len(variants)))
    failed = dict.fromkeys(words for _, faults in answers for words in faults)
    return tuple(sorted(found, key=lambda use: use.key)), tuple(failed)


def _larger(one: Use, other: Use) -> Use:
    return replace(one, **{name: max(getattr(one, name), getattr(other, name)) for name in FIGURES})


def measured(tasks: Sequence[tuple[Case, str]]) -> tuple[list[tuple[str, Use]], list[str]]:
    """Compiles the kernels of cases: (image, what it takes) of each launch, and what failed, in words."""
    from equiv.emulator.compiling import CompilingDevice

    found: list[tuple[str, Use]] = []
    failed: list[str] = []
    seen: set[tuple[Any, ...]] = set()
    for case, name in tasks:
        pair, arch = pairs.get(case.pair), name.partition(":")[2]
        for party in ("oracle", "candidate"):
            implementation = getattr(pair, party)
            if arch not in implementation.architectures or implementation.unsupported(case):
                continue  # it has no code for that
            device = CompilingDevice(arch)
            try:
                _called(pair, implementation.load(), case, device)
            except Exception as error:  # noqa: BLE001  whatever a party or its compiler raises, it is what failed
                failed.append(f"{case.name} {party} {name}: {one_line(error)}")
                continue
            for launch in device.launches:
                key = (pair.name, party, launch.image, launch.kernel, launch.dynamic_shared)
                if key not in seen:
                    seen.add(key)
                    found.append((launch.image, _use(pair.name, party, arch, launch)))
    return found, failed


def _use(pair: str, party: str, arch: str, launch: Any) -> Use:  # noqa: ANN401
    from equiv.emulator.resources import resources
    from equiv.emulator.store import shared_store

    image = shared_store().get(launch.image)
    own = resources(image.cubin, launch.kernel)
    compiler = ", ".join(f"{package} {version}" for package, version in sorted(image.toolchain.items()))
    figures = asdict(own) | {"shared": own.shared + launch.dynamic_shared}
    return Use(pair, party, kernel_name(launch.kernel), arch, compiler, **figures)


def _called(pair: Pair, party: Callable[..., None], case: Case, device: Any) -> None:  # noqa: ANN401
    """Calls a party with tensors of zeros that take no memory until they are written."""
    import torch

    from equiv.buffers import Image, span, storage

    tensors, images = {}, []
    try:
        for spec in pair.layout(case):
            images.append(Image(max(span(spec), 16), sparse=True))
            flat = torch.from_numpy(images[-1].bytes).view(getattr(torch, storage(spec).torch))
            tensors[spec.name] = flat.as_strided(spec.shape, spec.strides)
        with device.active():
            party(case, tensors)
    finally:
        for image in images:
            image.close()


def _file(pair: str, directory: Path | None) -> Path:
    return casefile.case_file(pair, directory).parent / "budgets" / f"{pair}.toml"


def _budgets(pair: str, options: argparse.Namespace) -> Iterator[Use]:
    path = _file(pair, options.cases)
    if not options.against or Path(options.against).is_dir():
        path = Path(options.against) / path.name if options.against else path
        if path.exists():
            yield from read(str(path), path.read_bytes())
        return
    root = Path(git("--against", path.parent.parent, "rev-parse", "--show-toplevel").decode().strip())
    git("--against", root, "rev-parse", "--verify", f"{options.against}^{{commit}}")
    below = path.resolve().relative_to(root)
    if git("--against", root, "ls-tree", options.against, "--", str(below)):
        yield from read(f"{options.against}:{below}", git("--against", root, "show", f"{options.against}:{below}"))


def read(name: str, data: bytes) -> Iterator[Use]:
    """The budgets of a file.

    Raises:
        UsageError: it is no TOML, or an entry lacks a figure or has one of another kind.
    """
    try:
        entries = tomllib.loads(data.decode()).get("kernel", [])
    except ValueError as error:
        raise UsageError(f"{name}: not TOML: {error}") from error
    wanted = {"pair": str, "party": str, "name": str, "arch": str, "compiler": str, **dict.fromkeys(FIGURES, int)}
    for at, entry in enumerate(entries if isinstance(entries, list) else [entries]):
        wrong = [key for key, kind in wanted.items() if not isinstance(entry, dict) or type(entry.get(key)) is not kind]
        if wrong or set(entry) - set(wanted):
            other = ", ".join(wrong or sorted(set(entry) - set(wanted)))
            raise UsageError(f"{name}: $.kernel[{at}]: missing, unknown or of another kind: {other}")
        yield Use(entry["pair"], entry["party"], entry["name"], entry["arch"], entry["compiler"],
                  *(entry[figure] for figure in FIGURES))  # fmt: skip


def write(pair: str, directory: Path | None, found: Sequence[Use]) -> None:
    """Puts what was found into a pair's budgets; those of other versions stay."""
    path = _file(pair, directory)
    kept: dict[tuple[str, ...], Use] = {}
    if path.exists():
        kept = {use.key: use for use in read(str(path), path.read_bytes())}
    kept |= {use.key: use for use in found}
    lines = [f"# What each kernel of {pair} may take: `equiv budget {pair}` compares, --update writes.", ""]
    for use in sorted(kept.values(), key=lambda use: use.key):
        lines += ["[[kernel]]", *(f'{key} = "{value}"' for key, value in _words(use).items())]
        lines += [f"{name} = {getattr(use, name)}" for name in FIGURES]
        lines.append("")
    write_atomic(path, "\n".join(lines[:-1]).encode() + b"\n")


def _words(use: Use) -> Mapping[str, str]:
    return {"pair": use.pair, "party": use.party, "name": use.kernel, "arch": use.arch, "compiler": use.compiler}
