"""What a gate leaves behind: verdict.json, JUnit XML, a Markdown summary and one self-contained page.

Here: renderers, each a pure function from an `Outcome` to text. Not here: any decision about a verdict. Start reading at
`verdict_json.py`; `write.py` puts the files in place, all or none.
"""
