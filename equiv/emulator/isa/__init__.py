"""The instruction table: every PTX instruction the emulator knows, by subject. See `table` for the form of an entry."""

from equiv.emulator.isa import (
    control,
    convert,
    copies,
    floating,
    integer,
    matrix,
    mbarrier,
    memory,
    tensor,
    warp,
)
from equiv.emulator.isa.table import Table

TABLE = Table(
    (
        *integer.ENTRIES,
        *floating.ENTRIES,
        *convert.ENTRIES,
        *memory.ENTRIES,
        *mbarrier.ENTRIES,
        *copies.ENTRIES,
        *warp.ENTRIES,
        *matrix.ENTRIES,
        *tensor.ENTRIES,
        *control.ENTRIES,
    )
)
