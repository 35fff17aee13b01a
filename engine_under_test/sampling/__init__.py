"""From logits to tokens: noise by address, and the sampler.

Not here: logits themselves (`execution/`), stopping (`sequence.py`). Start reading at `sampler.py`, then `noise.py`.
"""
