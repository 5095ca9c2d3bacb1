"""What every importer of foreign files needs: bounded reading, checked numbers, tables, their words.

Knows no single format (importers/ does) and nothing of the store.
"""
