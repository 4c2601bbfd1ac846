"""The verdicts of a run as JUnit XML: suites are pairs on a device, tests are cases, facts are properties.

MISMATCH is a failure, ERROR and NOT_RUN are errors, UNSUPPORTED is skipped; a known gap is skipped, its reason given.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from equiv.records import Status, Verdict
from equiv.report.outcome import is_known_gap
from equiv.report.text import case_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_UNPRINTABLE = re.compile("[^\t\n -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TAGS = {
    Status.MISMATCH: "failure",
    Status.ERROR: "error",
    Status.NOT_RUN: "error",
    Status.UNSUPPORTED: "skipped",
}


def render(verdicts: Sequence[Verdict], environment: Mapping[str, str]) -> str:
    """The XML document, ending in a newline; the environment stands in every suite."""
    root = ET.Element("testsuites", name="equiv")
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in verdicts:
        groups.setdefault((verdict.case.partition("::")[0], verdict.device), []).append(verdict)
    for (pair, device), members in groups.items():
        counts = Counter(_tag(verdict) for verdict in members)
        suite = ET.SubElement(root, "testsuite", name=f"{pair} {device}", tests=str(len(members)))
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(attribute, str(counts[tag]))
        suite.set("time", f"{sum(verdict.seconds for verdict in members):.3f}")
        _properties(suite, environment)
        for verdict in members:
            _case(suite, verdict)
    ET.indent(root, " ")
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _tag(verdict: Verdict) -> str:
    return "skipped" if is_known_gap(verdict) else _TAGS.get(verdict.status, "")


def _case(suite: ET.Element, verdict: Verdict) -> None:
    pair, _, name = verdict.case.partition("::")
    case = ET.SubElement(suite, "testcase", classname=f"{pair}.{verdict.device}", name=name)
    case.set("time", f"{verdict.seconds:.3f}")
    used = [output.envelope_used for output in verdict.outputs if output.envelope_used is not None]
    facts = {
        "status": str(verdict.status),
        "seed": str(verdict.seed),
        "again": verdict.again,
        "warp_instructions": str(verdict.warp_instructions),
        "envelope_used": f"{max(used):.4f}" if used else "",
        "blamed": ", ".join(sorted({output.blamed for output in verdict.outputs if output.blamed})),
        "known_gap": verdict.gap,
        **verdict.toolchain,
    }
    _properties(case, facts)
    tag = _tag(verdict)
    if tag:
        said = ET.SubElement(case, tag, message=_printable(verdict.gap or verdict.summary), type=str(verdict.status))
        said.text = _printable(case_text(verdict))


def _properties(parent: ET.Element, facts: Mapping[str, str]) -> None:
    properties = ET.SubElement(parent, "properties")
    for name, value in facts.items():
        if value:
            ET.SubElement(properties, "property", name=name, value=_printable(value))


def _printable(text: str) -> str:
    """The text without what XML 1.0 cannot hold, spelt out instead."""
    return "".join(
        c if c in "\n\t" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" else repr(c)[1:-1] for c in text
    )
