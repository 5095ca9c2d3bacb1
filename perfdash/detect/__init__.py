"""Judge nights against earlier nights, keep alerts, compare runs, and date changes.

Knows the history and statistics; nothing of measuring, terminals or pages.
"""
