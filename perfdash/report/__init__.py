"""What people read: tables from results. Pure functions of records."""
