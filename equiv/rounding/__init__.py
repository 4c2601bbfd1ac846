"""The numerics model: what GPU arithmetic gives, bit for bit, and what two correct kernels may differ in.

From the bottom: `formats` (facts of number formats), `conversions`, `arithmetic` and `special` (the instructions, on
bit patterns), `orders` (reduction trees as data), `declaration` (what one implementation declares), `ledger` (every
rounding point of an operator as a row), `dsa` (a model that executes the rows under a declaration) and `intervals`
(the same in intervals, for the envelope). Arrays are unsigned-integer bit patterns. Nothing here knows of kernels,
devices or torch.
"""
