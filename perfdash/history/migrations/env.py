"""What Alembic runs: the migrations on the connection that perfdash.history.store hands over."""

from alembic import context

from perfdash.history.schema import metadata
from perfdash.history.store import VERSION_TABLE

connection = context.config.attributes["connection"]
# SQLite cannot alter most of a table: Alembic then makes it anew and copies the rows.
context.configure(
    connection=connection, target_metadata=metadata, render_as_batch=True, version_table=VERSION_TABLE
)
with context.begin_transaction():
    context.run_migrations()
