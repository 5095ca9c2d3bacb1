"""Serve the site live from the store, with any comparison and a JSON API. It never writes."""
