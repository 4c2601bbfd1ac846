"""The report of a run as one JSON document of a versioned schema: counts, environment, and every verdict whole."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from equiv import wire
from equiv.records import SEVERITY, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SCHEMA = "equiv.report"
VERSION = 1


def render(verdicts: Sequence[Verdict], environment: Mapping[str, str], remarks: Iterable[str] = ()) -> str:
    """The document as text, ending in a newline; keys are those of the records."""
    found = Counter(verdict.status for verdict in verdicts)
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "counts": {status: found[status] for status in SEVERITY},
        "environment": dict(environment),
        "remarks": list(remarks),
        "verdicts": [wire.encode(verdict) for verdict in verdicts],
    }
    return json.dumps(document, indent=1, allow_nan=False) + "\n"
