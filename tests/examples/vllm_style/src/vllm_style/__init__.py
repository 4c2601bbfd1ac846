"""A package of inference kernels, as an engine would have one."""
