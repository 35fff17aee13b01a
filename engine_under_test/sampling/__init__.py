"""From logits to tokens: noise by address, the sampler, and the drafts of speculative decoding with their verification.

Not here: logits themselves (`execution/`), stopping (`sequence.py`). Start reading at `sampler.py`, then
`noise.py`; for drafts at `speculation.py`.
"""
