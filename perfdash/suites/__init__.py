"""What is measured: suite files, the cases that `perfdash run` selects from them, how outputs are judged.

Knows nothing of processes, results or the history.
"""
