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
    tensor,
    tensormap,
    warp,
)
from equiv.emulator.isa.table import Table

TABLE = Table(
    (
        *integer.ENTRIES,
        *bits.ENTRIES,
        *compare.ENTRIES,
        *floating.ENTRIES,
        *half.ENTRIES,
        *double.ENTRIES,
        *convert.ENTRIES,
        *narrow.ENTRIES,
        *memory.ENTRIES,
        *atomics.ENTRIES,
        *mbarrier.ENTRIES,
        *copies.ENTRIES,
        *warp.ENTRIES,
        *matrix.ENTRIES,
        *tensor.ENTRIES,
        *tensormap.ENTRIES,
        *control.ENTRIES,
    )
)
