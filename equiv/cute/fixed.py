"""Objects of kernels that group values which never change."""

from __future__ import annotations


class Fixed:
    """Base of a class whose values are set when it is made: loops and branches of a kernel need not carry them.

    CuTe DSL passes every object whose methods a loop calls through that loop; by this protocol there is nothing to do.
    """

    def __extract_mlir_values__(self):
        return []

    def __new_from_mlir_values__(self, values):
        return self
