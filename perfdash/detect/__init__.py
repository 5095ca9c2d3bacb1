"""What changed and whether it is real: nights judged, alerts and their life, series of any origin.

Knows the history and statistics; nothing of measuring, terminals or pages.
"""
