"""The command `equiv mutate PAIR`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from equiv import casefile, pairs
from equiv.arguments import positive, seconds
from equiv.device import EMULATED
from equiv.errors import UnsupportedError, UsageError
from equiv.mutate import OPERATORS
from equiv.plan import DEFAULT_DEVICE, cases
from equiv.terminal import visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from equiv.mutate.argued import Argument
    from equiv.mutate.kill import Outcome
    from equiv.mutate.mutants import Mutant
    from equiv.mutate.report import Result
    from equiv.records import AxisValue, Case


def add_parser(commands: Any) -> None:  # noqa: ANN401
    """Adds `mutate` to the commands."""
    mutate = commands.add_parser(
        "mutate", help="how many faults seeded into the candidate's PTX the cases of a pair notice"
    )
    mutate.add_argument("selectors", nargs="+", metavar="PAIR | PAIR::CASE", help="one pair, or cases of it")
    mutate.add_argument("--suite", action="append", default=[], metavar="S", help="cases of suite S (default pr)")
    mutate.add_argument("--cases", type=Path, metavar="DIR", help="folder of case files")
    mutate.add_argument(
        "--device", default=DEFAULT_DEVICE, metavar="D", help=f"an emulated one, default {DEFAULT_DEVICE}"
    )
    mutate.add_argument(
        "--operator",
        action="append",
        default=[],
        choices=tuple(OPERATORS),
        help="only mutants of this kind (repeatable, default all)",
    )
    mutate.add_argument("--limit", type=positive, metavar="N", help="a sample of N mutants, drawn with --seed")
    mutate.add_argument(
        "--time-limit",
        type=seconds,
        metavar="S",
        help="begin no mutant after S seconds, recording included; those met are a sample, drawn with --seed",
    )
    mutate.add_argument("--seed", type=int, default=0, metavar="N", help="of the sample, default 0")
    mutate.add_argument("--every", action="store_true", help="run all cases on each mutant: which kill which")
    mutate.add_argument("--at-least", type=float, metavar="PERCENT", help="exit with 1 if the score is lower")
    mutate.add_argument("--json", action="store_true", help="as JSON, every mutant")
    mutate.add_argument(
        "-j", "--jobs", type=positive, default=1, metavar="N", help="processes that record and play (default 1)"
    )
    mutate.set_defaults(command=_mutate)


def _mutate(options: argparse.Namespace) -> int:
    """0, whatever survives; 1 only if `--at-least` asks for a higher score, or for any and no mutant is live."""
    from equiv.mutate import report

    arch = options.device.removeprefix("emulated:")
    if arch not in EMULATED or arch == options.device:
        raise UsageError(
            f"device {options.device!r} runs no mutants; known: {', '.join(f'emulated:{a}' for a in EMULATED)}"
        )
    if not 0 <= options.seed < 1 << 64:
        raise UsageError(f"seed {options.seed} is not an integer from 0 to 2**64 - 1")
    plain = any("::" in selector for selector in options.selectors)
    suites = options.suite or ([] if plain else ["pr"])
    chosen = cases(options.cases, options.selectors, suites)
    names = sorted({case.pair for case in chosen})
    if len(names) != 1:
        raise UsageError(f"mutants are made of one pair at a time, not of {', '.join(names)}")
    result = run(names[0], chosen, arch, options, tuple(suites))
    print(json.dumps(report.document(result), indent=1) if options.json else visible(report.render(result)))
    return int(options.at_least is not None and (result.score is None or result.score < options.at_least))


def run(
    pair_name: str, chosen: Sequence[Case], arch: str, options: argparse.Namespace, suites: tuple[str, ...]
) -> Result:
    """Records the cases, makes the mutants, and lets each meet the cases."""
    os.environ.setdefault("CUTE_DSL_LINEINFO", "1")  # so that the PTX says which line of the kernel it is from
    from equiv.emulator.store import shared_store
    from equiv.mutate import argued, pool
    from equiv.mutate.kill import Stage
    from equiv.mutate.mutants import Target
    from equiv.mutate.report import Result

    begun = monotonic()
    pair = pairs.get(pair_name)
    operators = tuple(name for name in OPERATORS if name in options.operator) or tuple(OPERATORS)
    with Stage(pair, chosen, arch, options.jobs) as stage:
        targets = {key: Target(shared_store().get(key[0]), key[1]) for key in stage.kernels}
        stage.rehearse(targets)
        if not stage.scenes:
            reasons = "; ".join(dict.fromkeys(stage.left_out.values()))
            raise UnsupportedError("cases", f"none of {len(chosen)} can be played: {reasons}")
        made = [mutant for target in targets.values() for mutant in target.mutants(operators)]
        picked = _sample(len(made), options.limit, options.seed)

        def late() -> bool:
            return options.time_limit is not None and monotonic() - begun > options.time_limit

        print(f"equiv: {len(stage.scenes)} cases, {len(picked)} of {len(made)} mutants", file=sys.stderr, flush=True)

        def one(number: int) -> Outcome:
            mutant = made[picked[number]]
            return stage.outcome(mutant, targets[mutant.image, mutant.kernel], every=options.every)

        outcomes: dict[int, Outcome] = {}
        for done, (number, outcome) in enumerate(pool.work(len(picked), one, _died, options.jobs, late), 1):
            outcomes[number] = outcome
            if done % 100 == 0:
                killed = sum(found.status == "killed" for found in outcomes.values())
                print(f"equiv: {done} of {len(picked)}, {killed} killed", file=sys.stderr, flush=True)
        users = {key: tuple(scene.case for scene in stage.scenes if key in scene.kernels) for key in targets}
    found, refuted, idle = _argued(
        argued.read(pair, casefile.case_file(pair_name, options.cases).parent),
        {key: argued.axes_of(pair, members) for key, members in users.items()},
        [(made[picked[number]], outcomes[number]) for number in sorted(outcomes, key=picked.__getitem__)],
    )
    whole = len(found) == len(made) and operators == tuple(OPERATORS)
    return Result(
        pair_name,
        f"emulated:{arch}",
        suites,
        {key: tuple(case.id for case in members) for key, members in users.items()},
        found,
        len(made),
        dict(stage.left_out),
        refuted,
        idle if whole else [],
        every=options.every,
    )


def _died(_: int, how: str) -> Outcome:
    from equiv.mutate.kill import Outcome

    return Outcome("killed", how=f"its process ended: {how}")


def _argued(
    arguments: Sequence[Argument],
    axes: Mapping[tuple[str, str], Sequence[Mapping[str, AxisValue]]],
    found: Sequence[tuple[Mutant, Outcome]],
) -> tuple[list[tuple[Mutant, Outcome]], list[tuple[Argument, Mutant, Outcome]], list[Argument]]:
    """The outcomes with survivors that are argued to be equivalent as such, refutations, and idle arguments."""
    result, refuted = [], []
    used = dict.fromkeys(range(len(arguments)), False)
    for mutant, outcome in found:
        reached = outcome.status != "not reached"
        cases = axes[mutant.image, mutant.kernel]
        covering = (at for at, one in enumerate(arguments) if one.unreached != reached and one.covers(mutant, cases))
        at = next(covering, None)
        if at is not None and outcome.status in {"survived", "not reached"}:
            used[at] = True
            result.append((mutant, replace(outcome, status="argued", how=arguments[at].why)))
            continue
        if at is not None and outcome.status == "killed" and not arguments[at].partly:
            refuted.append((arguments[at], mutant, outcome))
        result.append((mutant, outcome))
    return result, refuted, [one for at, one in enumerate(arguments) if not used[at]]


def _sample(count: int, limit: int | None, seed: int) -> list[int]:
    """Numbers below `count`, `limit` of them or all, as drawn: the first few are the sample of a lower limit."""
    generator = np.random.Generator(np.random.Philox(seed))
    return [int(number) for number in generator.permutation(count)[:limit]]
