"""OpenVINO sends usage figures over the network: not from here."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
connections = []
calls = ("socket.connect", "socket.getaddrinfo")
sys.addaudithook(lambda event, _: connections.append(event) if event in calls else None)
import torch
from perfdash.records import Case, Job
from perfdash.worker import capabilities, registry
job = Job(case=Case("s", "m", backend="openvino"), loader="", target="", scratch=sys.argv[1])
capabilities.prepare_backend(job)
module = torch.nn.Linear(4, 4).eval()
model = registry.find("backends", "openvino").prepare(module, (torch.ones(1, 4),), job)
assert torch.allclose(model(torch.ones(1, 4)), module(torch.ones(1, 4)))
import openvino.tools.ovc.telemetry_utils as used
print(used.tm.__name__, connections)
"""


@pytest.mark.slow
def test_nothing_is_sent(tmp_path):
    pytest.importorskip("openvino")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("openvino.tools.ovc.telemetry_stub []")
