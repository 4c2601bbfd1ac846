"""Executes the PTX that Triton and CuTe DSL emit on a CPU, bit for bit."""
