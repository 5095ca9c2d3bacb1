"""Plans, places on cores, starts and watches workers, writes the journal."""
