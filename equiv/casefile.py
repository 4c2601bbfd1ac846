"""Case files: TOML -> `Case` records, with every fault of a file reported at once.

    pair = "dsa_index"                       # optional; the file's name says it too

    [defaults]                               # optional; what the cases do not say themselves
    suites = ["pr"]
    axes = { batch = 17 }

    [[case]]
    id = "fp8-b17-ties"                      # lower case, fit for a shell; named dsa_index::fp8-b17-ties everywhere
    why = "1 in 16 inputs is an exact E4M3 tie; ..."
    seed = 17
    suites = ["smoke"]                       # smoke is part of pr, pr of nightly: name the smallest
    axes = { format = "fp8" }
    regimes = { q = "midpoints" }

`known_gaps.toml` beside them lists what is known to fail: `[[gap]]` with `id`, `reason` and `until`, a date.
"""

from __future__ import annotations

import datetime as dt
import difflib
import math
import re
import tomllib
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equiv import pairs
from equiv.errors import CaseFileError, Fault, NoCaseFileError, UsageError
from equiv.records import Case

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from equiv.pairs import Axis, Pair
    from equiv.records import AxisValue

SUITES = ("smoke", "pr", "nightly")
"""Every suite contains the ones before it."""
GAPS = "known_gaps.toml"

_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")
_KINDS: Mapping[type, str] = {
    bool: "a boolean",
    int: "an integer",
    float: "a float",
    str: "a string",
    list: "an array",
    dict: "a table",
    dt.date: "a date",
}
_AXIS_TYPES: Mapping[str, type] = {"int": int, "float": float, "str": str, "bool": bool}
_FILE_KEYS = {"pair": str, "defaults": dict, "case": list}
_DEFAULT_KEYS = {"suites": list, "axes": dict, "regimes": dict}
_CASE_KEYS = {"id": str, "why": str, "seed": int, **_DEFAULT_KEYS}
_GAP_KEYS = {"id": str, "reason": str, "until": dt.date}


@dataclass(frozen=True, slots=True)
class Gap:
    """A case that is known not to pass: its full name, why, and the last day on which this is accepted."""

    id: str
    reason: str
    until: dt.date


@dataclass(slots=True)
class _Reader:
    """Looks at tables and keeps what is wrong with them."""

    faults: list[Fault] = field(default_factory=list)

    def say(self, path: str, problem: str) -> None:
        self.faults.append(Fault(path, problem))

    def table(
        self, found: Mapping[str, Any], path: str, keys: Mapping[str, type], needed: Iterable[str] = ()
    ) -> dict[str, Any]:
        """The entries of known keys and right types; faults for all others, and for `needed` keys that are absent."""
        good = {}
        for key, value in found.items():
            if key not in keys:
                self.say(f"{path}.{key}", f"unknown key{_hint(key, keys)}")
            elif type(value) is not keys[key]:
                self.say(f"{path}.{key}", f"expected {_KINDS[keys[key]]}, got {_shown(value)}")
            else:
                good[key] = value
        for key in needed:
            if key not in found:
                self.say(f"{path}.{key}", f"missing: expected {_KINDS[keys[key]]}")
        return good

    def tables(self, found: Sequence[Any], path: str) -> list[tuple[str, Mapping[str, Any]]]:
        """(path, table) of each entry of an array of tables."""
        for at, entry in enumerate(found):
            if not isinstance(entry, dict):
                self.say(f"{path}[{at}]", f"expected a table, got {_shown(entry)}")
        return [(f"{path}[{at}]", entry) for at, entry in enumerate(found) if isinstance(entry, dict)]

    def choice(self, value: object, path: str, choices: Collection[AxisValue]) -> bool:
        """Whether `value` is one of `choices`; a fault otherwise."""
        if any(type(value) is type(allowed) and value == allowed for allowed in choices):
            return True
        names = [allowed for allowed in choices if isinstance(allowed, str)]
        hint = _near(value, names) if isinstance(value, str) else ""
        self.say(path, f"expected one of {', '.join(map(_shown, choices))}, got {_shown(value)}{hint}")
        return False

    def text(self, good: Mapping[str, Any], key: str, path: str) -> str:
        """A string that says something, "" with a fault otherwise."""
        if key in good and not good[key].strip():
            self.say(f"{path}.{key}", "expected some words, got an empty string")
        return str(good.get(key, "")).strip()

    def suites(self, good: Mapping[str, Any], path: str) -> tuple[str, ...]:
        """The suites a case belongs to: those named and all that contain them."""
        named = good.get("suites", [])
        if "suites" in good and not named:
            self.say(f"{path}.suites", f"empty: expected at least one of {', '.join(map(_shown, SUITES))}")
        known = [name for at, name in enumerate(named) if self.choice(name, f"{path}.suites[{at}]", SUITES)]
        return SUITES[min(map(SUITES.index, known)) :] if known else ()

    def axes(self, good: Mapping[str, Any], path: str, axes: Sequence[Axis]) -> dict[str, AxisValue]:
        """The axes named in a table, checked against the pair's."""
        found = {}
        by_name = {axis.name: axis for axis in axes}
        for name, value in good.get("axes", {}).items():
            here = f"{path}.axes.{name}"
            if name not in by_name:
                self.say(here, f"unknown axis{_hint(name, by_name)}")
            elif self._fits(value, here, by_name[name]):
                found[name] = float(value) if by_name[name].kind == "float" else value
        return found

    def _fits(self, value: object, path: str, axis: Axis) -> bool:
        wanted = _AXIS_TYPES[axis.kind]
        if wanted is float and type(value) is int:
            value = float(value)
        if axis.choices:
            return self.choice(value, path, axis.choices)
        if type(value) is not wanted:
            self.say(path, f"expected {_KINDS[wanted]}, got {_shown(value)}")
            return False
        low = -math.inf if axis.low is None else axis.low
        high = math.inf if axis.high is None else axis.high
        if isinstance(value, (int, float)) and not low <= value <= high:
            self.say(path, f"expected {_KINDS[wanted]} from {axis.low} to {axis.high}, got {_shown(value)}")
            return False
        return True

    def regimes(self, good: Mapping[str, Any], path: str, known: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
        """The regimes named in a table, checked against the pair's."""
        found = {}
        for piece, value in good.get("regimes", {}).items():
            here = f"{path}.regimes.{piece}"
            if piece not in known:
                self.say(here, f"nothing called that has regimes{_hint(piece, known)}")
            elif self.choice(value, here, known[piece]):
                found[piece] = str(value)
        return found


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, (list, dict)):
        return _KINDS[type(value)]
    return str(value).lower() if isinstance(value, bool) else str(value)


def _near(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), 1)
    return f'; did you mean "{close[0]}"?' if close else ""


def _hint(name: str, known: Collection[str]) -> str:
    return _near(name, known) or f"; known: {', '.join(known)}"


def _parse(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode())
    except (ValueError, RecursionError) as error:  # ValueError: no TOML, no UTF-8, or an integer of thousands of digits
        raise CaseFileError(str(path), (Fault("$", f"not TOML: {error}"),)) from error
    except OSError as error:
        raise UsageError(f"cannot read case file {path}: {error.strerror}") from error


def load(path: Path | str, pair: Pair | None = None) -> tuple[Case, ...]:
    """The cases of a file, with the pair's defaults filled in for axes and regimes, in the file's order.

    Args:
        path: the TOML file.
        pair: the pair it belongs to; by default the registered one of the file's name.

    Raises:
        CaseFileError: the file has faults; it carries all of them.
        UsageError: the file cannot be read, or no such pair exists.
    """
    path = Path(path)
    found = _parse(path)
    pair = pair or pairs.get(path.stem)
    reader = _Reader()
    top = reader.table(found, "$", _FILE_KEYS, ["case"])
    name_of_file = pairs.base(pair.name)
    if top.get("pair", name_of_file) != name_of_file:
        reader.say("$.pair", f"expected {_shown(name_of_file)}, got {_shown(top['pair'])}")
    base = reader.table(top.get("defaults", {}), "$.defaults", _DEFAULT_KEYS)
    base_suites = reader.suites(base, "$.defaults")
    axes = {axis.name: axis.default for axis in pair.axes} | reader.axes(base, "$.defaults", pair.axes)
    regimes = {piece: known[0] for piece, known in pair.regimes.items()} | reader.regimes(
        base, "$.defaults", pair.regimes
    )
    cases: list[Case] = []
    first_use: dict[str, str] = {}
    for here, entry in reader.tables(top.get("case", []), "$.case"):
        good = reader.table(entry, here, _CASE_KEYS, ["id", "why", "seed"])
        name = str(good.get("id", ""))
        if "id" in good and not _ID.fullmatch(name):
            reader.say(f"{here}.id", f'expected lower-case letters, digits, "-", "_" and ".", got {_shown(name)}')
        elif name in first_use:
            reader.say(f"{here}.id", f"{_shown(name)} is already the id of {first_use[name]}")
        elif name:
            first_use[name] = here
        seed = good.get("seed", 0)
        if not 0 <= seed < 1 << 64:
            reader.say(f"{here}.seed", f"expected an integer from 0 to 2**64 - 1, got {seed}")
        suites = reader.suites(good, here) if "suites" in good else base_suites
        if not suites and "suites" not in entry:
            reader.say(f"{here}.suites", f"missing: expected an array of {', '.join(map(_shown, SUITES))}")
        why, before = reader.text(good, "why", here), len(reader.faults)
        own_axes, own_regimes = reader.axes(good, here, pair.axes), reader.regimes(good, here, pair.regimes)
        case = Case(pair.name, name, why, seed, suites, axes | own_axes, regimes | own_regimes, f"{path} {here}")
        if len(reader.faults) == before:
            for below, problem in pair.check(case):
                reader.say(f"{here}.{below}", problem)
        cases.append(case)
    if not cases and not reader.faults:
        reader.say("$.case", "no case in this file")
    if reader.faults:
        raise CaseFileError(str(path), tuple(reader.faults))
    return tuple(cases)


def problems(case: Case, pair: Pair) -> tuple[Fault, ...]:
    """What is wrong with axes and regimes of a case that no file of this machine stated, by the pair's own rules."""
    reader = _Reader()
    stated = {"axes": dict(case.axes), "regimes": dict(case.regimes)}
    reader.axes(stated, "$", pair.axes)
    reader.regimes(stated, "$", pair.regimes)
    if not reader.faults:
        reader.faults += [Fault(f"$.{below}", problem) for below, problem in pair.check(case)]
    return tuple(reader.faults)


def load_gaps(path: Path, cases: Iterable[Case], today: dt.date) -> tuple[Gap, ...]:
    """The known gaps listed in a file; none if it does not exist.

    Raises:
        CaseFileError: an entry is malformed, names no case of `cases`, is listed twice, or is past its date.
    """
    if not path.exists():
        return ()
    reader = _Reader()
    names = {case.name for case in cases}
    gaps: dict[str, Gap] = {}
    top = reader.table(_parse(path), "$", {"gap": list})
    for here, entry in reader.tables(top.get("gap", []), "$.gap"):
        good = reader.table(entry, here, _GAP_KEYS, _GAP_KEYS)
        reason = reader.text(good, "reason", here)
        name, until = good.get("id"), good.get("until")
        if name is not None and name not in names:
            reader.say(f"{here}.id", f"no case is called {_shown(name)}{_near(name, names)}")
        elif name in gaps:
            reader.say(f"{here}.id", f"{_shown(name)} is listed twice")
        if until is not None and until < today:
            reader.say(f"{here}.until", f"was accepted until {until}: close the gap, or say why it stays")
        if name is not None and until is not None:
            gaps[name] = Gap(name, reason, until)
    if reader.faults:
        raise CaseFileError(str(path), tuple(reader.faults))
    return tuple(gaps.values())


def _folders() -> Iterable[Path]:
    here = Path.cwd()
    for folder in (here, *here.parents):
        yield folder / "cases"
    yield Path(__file__).parent / "_cases"
    yield Path(__file__).parent.parent / "cases"


def find_cases(directory: Path | None = None) -> Path:
    """The folder of the case files.

    `directory` if given; else the first that holds a TOML file of: `cases` in the working directory or one above it,
    the folder that the installed package carries, the source tree's.

    Raises:
        UsageError: there is none.
    """
    folders = list(_folders()) if directory is None else [directory]
    for folder in folders:
        if any(folder.glob("*.toml")):
            return folder
    raise UsageError(f"no case files (*.toml) in {', '.join(map(str, folders))}")


def case_file(pair: str, directory: Path | None = None) -> Path:
    """The case file of a pair: `<pair>.toml` in `directory`, else in the first of the usual folders that has it.

    The last of these is `cases` in the package that brings the pair. `PAIR+KERNEL` has the cases of the pair.

    Raises:
        NoCaseFileError: there is none.
    """
    name = f"{pairs.base(pair)}.toml"
    folders = [*_folders(), *_brought(pairs.base(pair))] if directory is None else [directory]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    raise NoCaseFileError(f"no case file {name} in {', '.join(map(str, folders))}")


def _brought(pair: str) -> list[Path]:
    """`cases` in the package that brings a pair; loads nothing."""
    if pair not in pairs.names():
        return []
    spec = find_spec(pairs.homes(pair)[0].partition(".")[0])
    return [Path(folder) / "cases" for folder in (spec.submodule_search_locations or ())] if spec else []


def load_all(directory: Path | None = None, pair_names: Sequence[str] = ()) -> tuple[Case, ...]:
    """The cases of all registered pairs, or of those named, each from its own file."""
    found = [(pairs.get(name), case_file(name, directory)) for name in pair_names or pairs.names()]
    return tuple(case for pair, path in found for case in load(path, pair))


def select(cases: Sequence[Case], targets: Sequence[str] = (), suites: Sequence[str] = ()) -> tuple[Case, ...]:
    """The cases that are wanted, in their order.

    Args:
        cases: what there is to choose from.
        targets: `PAIR`, `PAIR::CASE`, or either with `*` and `?`; none means all.
        suites: only cases of one of these; a case that a target names in full is taken whatever its suites.

    Raises:
        UsageError: an unknown suite, or a target that matches no case, with the nearest name; or nothing is left.
    """
    for suite in suites:
        if suite not in SUITES:
            raise UsageError(f"no suite named {suite!r}{_hint(suite, SUITES)}")
    names = {case.name for case in cases}
    for target in targets:
        if not any(matches(case, target) for case in cases):
            raise UsageError(f"no case matches {target!r}{_near(target, names | {case.pair for case in cases})}")
    wanted = tuple(
        case
        for case in cases
        if case.name in targets
        or (
            (not suites or any(suite in case.suites for suite in suites))
            and (not targets or any(matches(case, target) for target in targets))
        )
    )
    if not wanted:
        raise UsageError(f"no case of {', '.join(targets) or 'any pair'} is in suite {', '.join(suites)}")
    return wanted


def matches(case: Case, target: str) -> bool:
    """Whether a target, `PAIR` or `PAIR::CASE` with `*` and `?`, means this case."""
    return fnmatchcase(case.name if "::" in target else case.pair, target)
