"""Case files as pytest items: `pytest cases/dsa_index.toml`, `pytest --equiv-suite smoke -n 2`.

Costs nothing until it is asked: a run without an `--equiv-` selection and without a case file on its command line
collects what it would collect without this plugin, and the library is imported inside hooks only. Each item runs in
the process that pytest (or pytest-xdist) runs it in; the controlling process gathers the verdicts, so that one report
covers all workers, and what a crashed worker leaves open is in it as ERROR or NOT_RUN.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from equiv.records import Verdict
    from equiv.wire import Planned
    from equiv.workers import Task


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declares the `--equiv-` options."""
    group = parser.getgroup("equiv", "numerical equivalence of kernels")
    group.addoption(
        "--equiv-suite", action="append", default=[], metavar="S", help="collect the cases of suite S (repeatable)"
    )
    group.addoption(
        "--equiv-case",
        action="append",
        default=[],
        metavar="CASE",
        help="collect this case, `dsa_index::fp8-b17-ties`, or all of a pair, `dsa_index` (repeatable)",
    )
    group.addoption(
        "--equiv-device", action="append", default=[], metavar="D", help="device (repeatable, default emulated:sm_100a)"
    )
    group.addoption(
        "--equiv-seed", action="append", default=[], type=int, metavar="N", help="also run with this seed (repeatable)"
    )
    group.addoption("--equiv-report", type=Path, metavar="FILE", help="write the verdicts as JSON")
    group.addoption("--equiv-strict", action="store_true", help="WITHIN fails")
    group.addoption("--equiv-require", action="store_true", help="UNSUPPORTED fails")


def pytest_configure(config: pytest.Config) -> None:
    """Adds the case files to what is collected, if cases were asked for and no path was given.

    Raises:
        pytest.UsageError: a device that does not exist, or a seed that cannot be.
    """
    devices, seeds = config.getoption("equiv_device"), config.getoption("equiv_seed")
    if devices or seeds:
        from equiv.device import check_name
        from equiv.errors import UsageError
        from equiv.gpus import pin_xdist_worker, pins
        from equiv.plan import Settings

        try:
            Settings(seeds=tuple(seeds))
            for name in devices:
                check_name(name)
            if "cuda" in devices:
                pin_xdist_worker(pins(["cuda"]).get("cuda", ()))  # each its own GPU, before anything loads CUDA
        except UsageError as error:
            raise pytest.UsageError(str(error)) from error
    config.pluginmanager.register(_Gathered(config), "equiv-gathered")
    if _asked(config) and config.args_source is not pytest.Config.ArgsSource.ARGS:
        from equiv.casefile import find_cases
        from equiv.plan import files

        config.args = [str(path) for path in files(find_cases())]


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> CaseFile | None:
    """A case file, if it was named on the command line, or cases were asked for and it lies in a folder `cases`."""
    if file_path.suffix != ".toml":
        return None
    if not parent.session.isinitpath(file_path):
        if not _asked(parent.config) or file_path.parent.name != "cases":
            return None
        from equiv.casefile import GAPS

        if file_path.name == GAPS:
            return None
    if file_path.is_relative_to(parent.config.rootpath):
        return CaseFile.from_parent(parent, path=file_path)
    # The package's own cases, say. By default their name would be "::case": no file to find them by, under xdist.
    return CaseFile.from_parent(parent, path=file_path, nodeid=file_path.as_posix())


def _asked(config: pytest.Config) -> bool:
    return bool(config.getoption("equiv_suite") or config.getoption("equiv_case"))


def _tasks(config: pytest.Config, path: Path) -> dict[str, Task]:
    """Item name -> task of a case file, as the options select them.

    Raises:
        CaseFileError: the file has faults.
        UsageError: an unknown suite, or a case of this pair that does not exist.
    """
    from equiv import casefile, pairs
    from equiv.plan import DEFAULT_DEVICE, Settings, known_gaps

    asked, suites = config.getoption("equiv_case"), config.getoption("equiv_suite")
    targets = [target for target in asked if fnmatchcase(path.stem, pairs.base(target.partition("::")[0]))]
    if asked and not targets:
        return {}
    devices = tuple(dict.fromkeys(config.getoption("equiv_device"))) or (DEFAULT_DEVICE,)
    settings = Settings(devices, tuple(config.getoption("equiv_seed")), gaps=known_gaps([path.parent]))
    kernels = dict.fromkeys(target.partition("::")[0].partition(pairs.JOINT)[2] for target in targets) or {"": None}
    found = {}
    for kernel in kernels:
        pair = pairs.get(path.stem + (pairs.JOINT + kernel if kernel else ""))
        wanted = [target for target in targets if target.partition("::")[0].partition(pairs.JOINT)[2] == kernel]
        for case in casefile.select(casefile.load(path, pair), wanted, suites):
            for task in settings.tasks(case):
                parts = [kernel] * bool(kernel) + [task.device] * (len(devices) > 1)
                parts += [f"seed={task.case.seed}"] * (task.case.seed != case.seed)
                found[case.id + (f"[{','.join(parts)}]" if parts else "")] = task
    return found


class CaseFile(pytest.File):
    """The cases of one TOML file."""

    def collect(self) -> Iterator[CaseItem]:
        """One item a case, device and seed."""
        from equiv.errors import UsageError
        from equiv.terminal import visible

        try:
            tasks = _tasks(self.config, self.path)
        except UsageError as error:
            raise self.CollectError(visible(str(error))) from error
        for name, task in tasks.items():
            item: CaseItem = CaseItem.from_parent(self, name=name)
            item.task = task
            yield item


class VerdictError(Exception):
    """Fails an item; its text is the report of the case, shown without a traceback."""


class CaseItem(pytest.Item):
    """One case on one device with one seed."""

    task: Task
    verdict: Verdict | None = None

    def runtest(self) -> None:
        """Verifies the case and turns the verdict into pytest's terms."""
        from equiv.records import Status
        from equiv.report.outcome import closed_gaps, exit_code, is_known_gap
        from equiv.report.text import case_text
        from equiv.terminal import visible
        from equiv.workers import run_task

        verdict = self.verdict = run_task(self.task)
        ulps = [e.ulps for o in verdict.outputs for d in o.differences for e in d.worst if e.ulps is not None]
        self.user_properties += [
            ("status", str(verdict.status)),
            ("device", verdict.device),
            ("seed", verdict.seed),
            ("max_ulps", max(ulps, default=0)),
        ]
        strict, require = self.config.getoption("equiv_strict"), self.config.getoption("equiv_require")
        if is_known_gap(verdict):
            pytest.xfail(visible(f"known gap: {verdict.gap}"))
        if not closed_gaps([verdict]) and exit_code([verdict], strict=strict, require=require) == 1:
            raise VerdictError(case_text(verdict))
        if verdict.status is Status.UNSUPPORTED:
            pytest.skip(visible(verdict.summary))
        if verdict.status is Status.WITHIN:
            said = f"{verdict.case} is only WITHIN its envelope: {verdict.summary}"
            self.warn(pytest.PytestWarning(visible(said)))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:  # noqa: ANN401
        """The report of the case, or its warning where warnings are errors; a traceback only if equiv itself failed."""
        if isinstance(excinfo.value, VerdictError | pytest.PytestWarning):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Where the item comes from: its file, and the case's own name."""
        return self.path, 0, f"{self.path.stem}::{self.name}"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Hangs the verdict onto the report, which is what travels from an xdist worker to the controller."""
    result = yield
    if isinstance(item, CaseItem) and call.when == "call" and item.verdict is not None:
        from equiv import wire

        result.get_result().equiv_verdict = wire.encode(item.verdict)  # type: ignore[attr-defined]


class _Gathered:
    """What the controlling process knows of a run: the planned items, and a verdict for each that reported one."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.is_worker = hasattr(config, "workerinput")
        self.planned: dict[str, Planned] = {}
        self.verdicts: dict[str, Verdict] = {}
        self.unmatched: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Notes the cases that were asked for by name and are nowhere, before anything is deselected."""
        if asked := self.config.getoption("equiv_case"):
            from equiv.casefile import matches

            found = [item.task.case for item in items if isinstance(item, CaseItem)]
            self.unmatched = [target for target in asked if not any(matches(case, target) for case in found)]
        if self.is_worker:
            self.config.workeroutput["equiv_unmatched"] = self.unmatched  # type: ignore[attr-defined]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:  # noqa: ANN401, ARG002
        """Takes over what a worker noted, unless it crashed; all of them collect the same."""
        self.unmatched = getattr(node, "workeroutput", {}).get("equiv_unmatched", self.unmatched)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.planned |= {item.nodeid: item.task.planned for item in session.items if isinstance(item, CaseItem)}

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:  # noqa: ANN401, ARG002
        """Under xdist only the workers collect; the same options give the same tasks here."""
        for path in {nodeid.partition("::")[0] for nodeid in ids if ".toml::" in nodeid}:
            tasks = _tasks(self.config, self.config.rootpath / path)
            self.planned |= {
                f"{path}::{name}": task.planned for name, task in tasks.items() if f"{path}::{name}" in ids
            }

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        encoded = getattr(report, "equiv_verdict", None)
        if encoded is not None:
            from equiv import wire

            self.verdicts[report.nodeid] = wire.verdict(encoded)
        elif report.failed and report.nodeid in self.planned:
            self.verdicts[report.nodeid] = self._broken(self.planned[report.nodeid], report.longreprtext)

    @staticmethod
    def _broken(planned: Planned, text: str) -> Verdict:
        """The verdict on an item that failed without one: its worker crashed, or equiv itself did."""
        from equiv.records import Status, Verdict

        return Verdict(planned.case, planned.device, planned.seed, Status.ERROR, text, again=planned.again)

    def all(self) -> list[Verdict]:
        """A verdict for each planned item, NOT_RUN where none came."""
        from equiv.records import Status, Verdict

        return [
            self.verdicts.get(nodeid)
            or Verdict(
                entry.case, entry.device, entry.seed, Status.NOT_RUN, "collected and not reached", again=entry.again
            )
            for nodeid, entry in self.planned.items()
        ]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Writes the report; a run that left cases open, or in which a known gap passes, is not green."""
        if self.is_worker:
            return
        if self.unmatched and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.USAGE_ERROR
        target = self.config.getoption("equiv_report")
        if self.config.option.collectonly or not (self.planned or target):
            return
        from equiv.records import Status
        from equiv.report import document, environment
        from equiv.report.outcome import closed_gaps

        verdicts = self.all()
        left_open = any(verdict.status is Status.NOT_RUN for verdict in verdicts)
        if session.exitstatus == pytest.ExitCode.OK and (left_open or closed_gaps(verdicts)):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if target:
            target.write_text(
                document.render(verdicts, environment.versions(), environment.basis(v.device for v in verdicts))
            )

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:  # noqa: ANN401
        """The counts of every status and the table, if there are cases; what was asked for and is nowhere, always."""
        for target in self.unmatched:
            terminalreporter.write_line(f"no case that was collected matches --equiv-case {target!r}", red=True)
        if not self.planned or self.config.option.collectonly:
            return
        from equiv.report import environment
        from equiv.report.text import closed, counts, table
        from equiv.terminal import visible

        verdicts = self.all()
        terminalreporter.section("equiv")
        terminalreporter.write_line(visible(table(verdicts)))
        for remark in [*closed(verdicts), *environment.basis(verdict.device for verdict in verdicts)]:
            terminalreporter.write_line(visible(remark))
        terminalreporter.write_line(counts(verdicts))
