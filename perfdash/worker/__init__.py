"""Everything that runs inside the measured interpreter.

Imports the standard library, torch and the library under test, nothing else, and keeps to Python
3.9 syntax: `perfdash run --python` puts this package under any interpreter that has torch.
"""
