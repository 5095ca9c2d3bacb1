"""Every run remembered: the store (SQLite or PostgreSQL), what goes in, what is asked of it.

Knows records and statistics; nothing of measuring, terminals or pages.
"""
