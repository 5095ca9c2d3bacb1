"""What the control groups of a container say of its CPU quota."""

import pytest

from perfdash.runner import cpu_quota

VERSION_2 = {"cpu.max": "400000 100000", "cpu.stat": "usage_usec 9\nnr_throttled 3\nthrottled_usec 2500000\n"}
VERSION_1 = {
    "cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000",
    "cpu/cpu.stat": "nr_throttled 3\nthrottled_time 2500000000\n",
}  # fmt: skip
UNLIMITED_1 = {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("files", "limit", "throttled_s"),
    [
        (VERSION_2, 4.0, 2.5),
        (VERSION_1, 1.5, 2.5),
        ({"cpu.max": "max 100000", "cpu.stat": "usage_usec 9\n"}, None, 0.0),
        (UNLIMITED_1, None, 0.0),
        ({}, None, 0.0),
    ],
)
def test_limit_and_throttling(monkeypatch, tmp_path, files, limit, throttled_s):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(cpu_quota, "CGROUPS", tmp_path)
    assert (cpu_quota.cpu_limit(), cpu_quota.throttled_s()) == (limit, throttled_s)
