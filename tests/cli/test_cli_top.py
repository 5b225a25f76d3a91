"""`radixrt top`: figures from readings, and one reading of a real server."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from radixrt.cli import app
from radixrt.cli.top import BARS, Readings, curve, read
from radixrt.errors import EngineDead, Unauthorized
from radixrt.server.keys import keys_of
from tests.server.conftest import serving
from tests.server.fake_backend import REPLY, FakeBackend


def test_rates_and_means() -> None:
    readings = Readings()
    readings.add({"tokens": 10.0, "s_sum": 1.0, "s_count": 2.0}, 100.0)
    assert readings.rates("tokens") == [] and readings.mean("s") == 0.5
    readings.add({"tokens": 30.0, "s_sum": 4.0, "s_count": 3.0}, 102.0)
    assert readings.rates("tokens") == [10.0] and readings.mean("s") == 3.0
    readings.add({"tokens": 5.0, "s_sum": 4.0, "s_count": 3.0}, 103.0)
    assert readings.rates("tokens") == [10.0, 5.0], "a restart begins at zero"
    assert readings.mean("nothing") is None


def test_curves() -> None:
    assert curve([0, 1, 2, 4]) == BARS[0] + BARS[2] + BARS[4] + BARS[7]
    assert curve([0, 0]) == BARS[0] * 2


def test_a_reading_of_a_server() -> None:
    backend = FakeBackend()
    with serving(backend, backend) as served:
        assert served.chat().status_code == 200
        assert read(served.http)["requests_finished_total|stop"] == 1
        result = CliRunner().invoke(app, ["top", "--url", served.url])
        assert result.exit_code == 0, "what is not a terminal gets one reading"
        assert "serving" in result.output and "KV tokens held" in result.output
        served.backend.alive = False
        assert "not serving" in CliRunner().invoke(app, ["top", "--url", served.url, "--once"]).output
        host, port = served.address()
        for given in (served.url, f"{host}:{port}", f"{served.url}/v1/"):
            result = CliRunner().invoke(app, ["top", given])
            assert result.exit_code == 0 and served.url in result.output, "in its place, or shorter"


def test_servers_that_do_not_answer_or_do_not_let_in() -> None:
    backend = FakeBackend()
    with serving(backend, backend, keys=keys_of(["client-key-1234"], admin="admin-key-1234")) as served:
        for key in ("client-key-1234", "wrong"):
            result = CliRunner().invoke(app, ["top", "--url", served.url, "--api-key", key])
            assert isinstance(result.exception, Unauthorized)
        arguments = ["top", "--url", served.url, "--once"]
        assert CliRunner().invoke(app, arguments, env={"RADIXRT_ADMIN_API_KEY": "admin-key-1234"}).exit_code == 0
        url = served.url
    result = CliRunner().invoke(app, ["top", "--url", url])
    with pytest.raises(EngineDead, match="no server answers"):
        raise result.exception or AssertionError
    assert REPLY not in result.output
