"""Plans runs, pins cases to cores, starts and watches workers, writes the journal."""
