"""Measures rankings with judged questions: `eval`, `compare` and `calibrate`.

Each is a console script of the wheel and needs the extra `eval`: `pip install
'text-embeddings-router[eval]'`. They know the server only through its HTTP interface, so other servers with
TEI's routes can be measured, too.
"""
