"""What is measured: suite files, and the cases that `perfdash run` selects from them.

Knows nothing of processes, results or the history.
"""
