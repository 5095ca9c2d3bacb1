"""The history as static pages: what is read of the store becomes plain views, views become HTML.

Each page can be made alone (for a server) or with all others, of which only those that changed are
written. It knows the history, detection and report; nothing of measuring or terminals.
"""
