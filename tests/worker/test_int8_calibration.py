"""What static INT8 is calibrated on, for every back end."""

from __future__ import annotations

from dataclasses import replace

from perfdash.records import Case, Job
from tests.lazy import lazy

torch = lazy("torch")
int8_calibration = lazy("perfdash.worker.int8_calibration")

JOB = Job(Case("s", "m", batch_size=4, backend="int8-static"), "models", "")


def test_training_data_are_on_the_device_of_the_inputs():
    inputs = (torch.zeros(4, 1, 8, 8, device="meta"),)
    batches, note = int8_calibration.calibration_batches(inputs, replace(JOB, data="digits"))
    assert len(batches) == 16
    assert all(images.device.type == "meta" for (images,) in batches)
    assert note == "calibrated on 16 batches of 4, training data (digits)"
