"""Language models as data: shapes and weights, file formats, tokenizers, and the Llama arithmetic.

Start reading at `weights.py`. Needs the extra `model`. Nothing here knows blocks, plans or schedulers.
"""
