"""Error rates at a small size; benchmarks/bisection.py is the same at a large one.

The bounds are such that a search that is as right as it is to be fails them once in 10,000 times.
"""

import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

ROOT = Path(__file__).parents[2]
TRIALS = 12


@pytest.fixture(scope="module")
def simulation():
    spec = importlib.util.spec_from_file_location(
        "bisection_simulation", ROOT / "benchmarks" / "bisection.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["2 sigma", "3 sigma", "5 sigma", "3 sigma, bias", "3 sigma, 10 % broken", "no effect"]
)
def test_right_with_few_builds(simulation, name):
    (setting,) = [setting for setting in simulation.SETTINGS if setting.name == name]
    done = simulation.trials(setting, TRIALS)
    assert sum(trial.right for trial in done) >= stats.binom.ppf(1e-4, TRIALS, setting.goal)
    if setting.confirmed:
        confirmed = sum(trial.right and trial.confirmed for trial in done)
        assert confirmed >= stats.binom.ppf(1e-4, TRIALS, setting.confirmed)
        assert sum(trial.confirmed and not trial.right for trial in done) <= 1
    assert sum(trial.builds for trial in done) / TRIALS <= 1.3 * math.log2(128) + 3
    sure = [trial.right for trial in done if trial.sure]
    assert sum(sure) >= stats.binom.ppf(1e-4, max(len(sure), 1), 0.95 if sure else 0.0)


@pytest.mark.slow
def test_rounded_values_are_not_taken_for_exact(simulation, monkeypatch):
    class Rounded(simulation.Truth):
        def measure(self, place, fresh=False):
            unit = 3 * self.sigma
            return unit * round(super().measure(place, fresh) / unit)

    monkeypatch.setattr(simulation, "Truth", Rounded)
    (setting,) = [setting for setting in simulation.SETTINGS if setting.name == "3 sigma"]
    done = simulation.trials(setting, 6)
    assert sum(trial.right for trial in done) >= 5
    assert all(trial.right for trial in done if trial.sure)


def test_one_measurement_each_is_mostly_wrong(simulation):
    rng = simulation.np.random.default_rng(0)
    plain = simulation.SETTINGS[0]
    assert sum(simulation.once_each(plain, rng) for _ in range(200)) < 100


@pytest.mark.slow
def test_a_host_that_is_elsewhere_after_a_pause(simulation):
    """Twenty deviations off, as after a night: what was measured before and after is not mixed up."""
    (setting,) = [setting for setting in simulation.SETTINGS if setting.name == "3 sigma, host moved by 5"]
    done = simulation.trials(replace(setting, moved=20.0), TRIALS)
    assert sum(trial.right for trial in done) >= stats.binom.ppf(1e-4, TRIALS, 0.98)
