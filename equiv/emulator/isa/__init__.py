"""The instruction table: every PTX instruction the emulator knows, by subject. See `table` for the form of an entry."""

from equiv.emulator.isa import (
    atomics,
    bits,
    compare,
    control,
    convert,
    copies,
    double,
    floating,
    half,
    integer,
    matrix,
    mbarrier,
    memory,
    narrow,
    refused,
    tensor,
    tensormap,
    warp,
)
from equiv.emulator.isa.table import Entry, Table

SUBJECTS: dict[str, tuple[Entry, ...]] = {
    "integer": integer.ENTRIES,
    "bits": bits.ENTRIES,
    "compare": compare.ENTRIES,
    "floating": floating.ENTRIES,
    "half": half.ENTRIES,
    "double": double.ENTRIES,
    "convert": convert.ENTRIES,
    "narrow": narrow.ENTRIES,
    "memory": memory.ENTRIES,
    "atomics": atomics.ENTRIES,
    "mbarrier": mbarrier.ENTRIES,
    "copies": copies.ENTRIES,
    "warp": warp.ENTRIES,
    "matrix": matrix.ENTRIES,
    "tensor": tensor.ENTRIES,
    "tensormap": tensormap.ENTRIES,
    "control": control.ENTRIES,
    "refused": refused.ENTRIES,
}
"""The entries of each subject."""

TABLE = Table(tuple(entry for entries in SUBJECTS.values() for entry in entries))
