"""CuTe DSL kernels of the KDA decode step and of the commit after it."""
