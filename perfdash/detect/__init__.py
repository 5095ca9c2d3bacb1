"""Judge nights against earlier nights, keep alerts, compare runs, and date changes.

It uses the history and statistics, and knows nothing of measuring, terminals or pages.
"""
