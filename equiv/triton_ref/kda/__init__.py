"""The stock KDA decode chain as plain Triton kernels, one a stage: the oracle of `kda`.

Formulas, rounding points, instruction choices, tile sizes and warps are those of the production chain (spec kda 1.2 to
1.9), for they fix the orders of its sums. But for one: the convolution's taps are spelt as fma. With a bias and T > 1
the compiler for sm_100a rounds the products of some tokens' taps in stock. Tokens a request are uniform, as in a
captured decode step.
"""

from __future__ import annotations

from equiv.triton_ref.kda.chain import kda_commit, kda_record, kda_step

__all__ = ["kda_commit", "kda_record", "kda_step"]
