"""The sizes of images and the lengths of texts that the suites measure with, against the public harnesses.

Sizes: timm's configurations (1.0.31), of which the dynamo runner takes that for tests in inference. Lengths:
torchbench's, which are shorter on the CPU in evaluation.
"""

from __future__ import annotations

import pytest

from perfdash.settings import RunSettings
from perfdash.suites.case_selection import select
from perfdash.suites.suite_file import load_suite
from tests.lazy import lazy

timm_models = lazy("timm.models")


@pytest.mark.parametrize(
    ("model", "inference", "training"),
    [
        ("convnext_base", 288, 224),
        ("convnextv2_nano.fcmae_ft_in22k_in1k", 288, 224),
        ("dm_nfnet_f0", 256, 192),
        ("ese_vovnet19b_dw", 288, 224),
        ("fbnetv3_b", 256, 224),
        ("nfnet_l0", 288, 224),
    ],
)
def test_images_of_another_size_in_inference(model: str, inference: int, training: int) -> None:
    for scenario, size in (("inference", inference), ("training", training)):
        (case,) = select([load_suite("timm")], RunSettings(models=(model,), scenario=scenario))
        assert case.inputs == {"size": [3, size, size]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "attribute"), [("inference", "test_input_size"), ("training", "input_size")]
)
def test_images_have_the_size_that_timm_gives(scenario: str, attribute: str) -> None:
    for case in select([load_suite("timm")], RunSettings(scenario=scenario)):
        facts = timm_models.get_pretrained_cfg(case.target)
        if facts is None:  # the model has another name now, and one size for both
            assert not case.inputs, case.case.model
            continue
        size = case.inputs.get("size", facts.input_size)  # without one the loader takes timm's of training
        assert tuple(size) == (getattr(facts, attribute) or facts.input_size), case.case.model


@pytest.mark.parametrize(
    ("model", "cpu", "cuda"),
    [
        ("hf_BigBird", 819, 4096),
        ("hf_GPT2", 256, 1024),
        ("hf_Longformer", 512, 4096),
        ("hf_Reformer", 2048, 4096),
        ("hf_T5", 512, 2048),
        ("hf_Albert", 512, 512),
    ],
)
def test_texts_are_shorter_on_the_cpu(model: str, cpu: int, cuda: int) -> None:
    for threads, device, sequence in ((1, "cpu", cpu), (4, "cpu", cpu), (1, "cuda", cuda)):
        settings = RunSettings(models=(model,), device=device, threads=threads)
        (case,) = select([load_suite("torchbench")], settings)
        assert case.inputs == {"sequence": sequence, "labels": False}


@pytest.mark.parametrize(("model", "sequence"), [("hf_GPT2", 512), ("hf_Reformer", 4096), ("hf_T5", 1024)])
def test_texts_are_as_long_on_the_cpu_in_training(model: str, sequence: int) -> None:
    for device in ("cpu", "cuda"):
        settings = RunSettings(models=(model,), device=device, scenario="training")
        (case,) = select([load_suite("torchbench")], settings)
        assert case.inputs["sequence"] == sequence
