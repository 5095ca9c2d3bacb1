"""The history of all runs: the store (SQLite or PostgreSQL), imports and queries.

Knows records and statistics; nothing of measuring, terminals or pages.
"""
