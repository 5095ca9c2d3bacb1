"""`perfdash serve`: the site live from the history, with any comparison and a JSON API."""

from __future__ import annotations

from typing import Annotated

import typer

from perfdash.cli.shared_options import Db, Out
from perfdash.files import dumps


def serve(
    db: Db = None,
    out: Out = None,
    host: Annotated[
        str, typer.Option(help="The address to listen on; 0.0.0.0 is all of them.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8337,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the address as a line of JSON once it is served.")
    ] = False,
) -> None:
    """Serve the site live from the history, until Ctrl-C.

    Access is read-only and has no log-in: see docs/serve.md.
    """
    import importlib.util

    from perfdash.errors import UsageError
    from perfdash.settings import resolve

    missing = [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"serve needs {' and '.join(missing)}: pip install {' '.join(missing)}")
    from perfdash.serve import server
    from perfdash.serve.read_only_store import open_to_read

    store = open_to_read(resolve({"db": db, "out": out})[0].history)
    with server.until_signal(), store, server.bound(host, port) as listening:
        if not server.is_local(listening):
            typer.echo("Everyone who reaches this address can read all of it", err=True)
        address = server.address_of(listening)
        plain = {"history": store.shown, "address": address}
        typer.echo(dumps(plain) if as_json else f"Serving {store.shown} on {address} (Ctrl-C ends it)")
        server.serve(store, listening)
    typer.echo("Ended", err=as_json)
