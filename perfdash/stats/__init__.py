"""Pure functions on numbers: intervals, tests, change points, means; no models, no processes."""
