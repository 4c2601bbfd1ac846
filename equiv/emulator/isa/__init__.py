"""The instruction table: every PTX instruction the emulator knows, by subject. See `table` for the form of an entry."""

from equiv.emulator.isa import (
    atomics,
    control,
    convert,
    copies,
    floating,
    integer,
    matrix,
    mbarrier,
    memory,
    tensor,
    tensormap,
    warp,
)
from equiv.emulator.isa.table import Table

TABLE = Table(
    (
        *integer.ENTRIES,
        *floating.ENTRIES,
        *convert.ENTRIES,
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
