"""KV memory: which block is what, which content can be found, and the only way to change either.

`block_pool.py` owns the blocks, `prefix_index.py` what content they can be found by, `transaction.py` the right to change
the two. Nothing here knows requests, order or tensors. Start reading at `transaction.py`.
"""
