"""The server that most tests ask: it is started once."""

import pytest

from tests.serve.served import fill, serving


@pytest.fixture(scope="package")
def history(tmp_path_factory):
    address = str(tmp_path_factory.mktemp("served") / "history.db")
    fill(address)
    return address


@pytest.fixture(scope="package")
def server(history):
    with serving(history) as started:
        yield started
