"""The site live from the store, comparisons of anything with anything, and a JSON API. It never writes."""
