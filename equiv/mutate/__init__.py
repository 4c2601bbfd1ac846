"""How much do the cases of a pair notice? Mutants of the candidate's PTX, and which case kills which (`equiv mutate`).

    record each case's launches -> sites -> mutants (operators) -> less what cannot matter -> kill run -> score

A mutant is the contracted kernel, as the emulator executes it, with one instruction changed; there is no ptxas between.
It is dead as soon as one case gives another bit, changes a byte that it must not, faults, hangs or deadlocks.
"""

OPERATORS = (
    "rounding", "ftz", "conversion", "constant", "immediate", "operands", "ordering", "predicate", "comparison",
    "exchange", "deletion",
)  # fmt: skip
"""Kinds of mutants, in the order of reports; what each does is in `equiv.mutate.operators`."""
