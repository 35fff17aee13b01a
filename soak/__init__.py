"""Long runs: plans of hours, drift and leak verdicts, clusters.

Not here: a single storm (`chaos/`). Empty until storms join; the longest runs now are those of `assay gate --profile nightly`.
"""
