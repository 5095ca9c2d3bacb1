"""Show the history as pages: views are read from the store, then rendered as HTML.

A page can be rendered alone (for the server) or with all others; the build writes only pages that changed.
The package uses history, detect and report, and knows nothing of measuring or terminals.
"""
