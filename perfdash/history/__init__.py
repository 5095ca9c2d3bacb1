"""The history of all runs: the store (SQLite or PostgreSQL), imports and queries.

It uses records and statistics, and knows nothing of measuring, terminals or pages.
"""
