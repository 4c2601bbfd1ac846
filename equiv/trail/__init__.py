"""What led to an element: launches recorded instruction by instruction, and the way back through registers and memory.

a played case -> who stored the element's bytes -> what that cluster did, recorded -> operand by operand back
"""
