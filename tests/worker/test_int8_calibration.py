"""What static INT8 is calibrated on, for every back end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdash.records import Case, Job
from tests.lazy import lazy

torch = lazy("torch")
dlrm = lazy("perfdash.worker.models.dlrm")
int8_calibration = lazy("perfdash.worker.int8_calibration")

JOB = Job(Case("s", "m", batch_size=4, backend="int8-static"), "models", "")


def test_training_data_are_on_the_device_of_the_inputs():
    inputs = (torch.zeros(4, 1, 8, 8, device="meta"),)
    batches, note = int8_calibration.calibration_batches(inputs, replace(JOB, data="digits"))
    assert len(batches) == 16
    assert all(images.device.type == "meta" for (images,) in batches)
    assert note == "calibrated on 16 batches of 4, training data (digits)"


@pytest.mark.parametrize("rising", [True, False])
def test_offsets_positions_and_lengths_stay(rising):
    offsets = (torch.arange(4) * 100).repeat(8, 1)
    offsets = offsets if rising else offsets.flip(1)
    batches, _ = int8_calibration.calibration_batches((offsets,), JOB)
    assert all(torch.equal(batch, offsets) for (batch,) in batches)


def test_token_ids_are_shuffled_within_their_row():
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8, 1, 8]], dtype=torch.uint8)
    batches, note = int8_calibration.calibration_batches({"input_ids": tokens}, JOB)
    for batch in batches:
        assert torch.equal(batch["input_ids"].sort().values, tokens.sort().values)
    assert any(not torch.equal(batch["input_ids"], tokens) for batch in batches)
    assert note == "calibrated on 16 batches of 4, drawn around the case's inputs"


def test_a_recommendation_model_takes_its_calibration():
    module, inputs = dlrm.build(4, rows=50)
    for batch in int8_calibration.calibration_batches(inputs, JOB)[0]:
        assert module(*batch).isfinite().all()
