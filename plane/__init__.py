"""What moves and computes tensors' bytes, and decides nothing.

Cores decide, and give a plane orders (protos/plane.proto); it reports what has happened.

    sums.py   pieces of chunks and sums of the reduction tree
"""
