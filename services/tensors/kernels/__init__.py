"""Arithmetic on flat arrays that gives the same bits on every host, by the C kernels of native/.

Imports native alone. Read `arithmetic` first: it checks arrays and calls the kernels. `wire_types` names the element
types of payloads. tests/support/numpy_kernels.py says in numpy what the kernels compute.
"""
