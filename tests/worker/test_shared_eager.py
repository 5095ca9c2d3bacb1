"""What cases of one eager side share: what its digest covers, and what becomes of useless files."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from perfdash.records import Case, Job
from tests.lazy import lazy

torch = lazy("torch")
shared_eager = lazy("perfdash.worker.shared_eager")
modules = lazy("tests.worker.modules")
eager_and_compiled = lazy("perfdash.worker.eager_and_compiled")

PLAIN = SimpleNamespace()


def side_of(job, scale=1.0, inputs=1.0):
    module = modules.Calls(lambda module, x: x, torch.full((3,), scale))
    return eager_and_compiled.eager_side(module, (torch.full((4,), inputs),), job, torch.device("cpu"))


@pytest.fixture
def job(tmp_path):
    return Job(Case("s", "m"), "python", "", shared=str(tmp_path))


def opened(job, backend=PLAIN, **side):
    return shared_eager.open_shared(job, side_of(job, **side), backend)


def read(job, backend=PLAIN, **side):
    return opened(job, backend, **side).read("memory")


def test_a_case_of_another_configuration_reads_what_the_first_one_wrote(job):
    opened(job).write("memory", {"differ": None, "transient_bytes": 7})
    case = replace(job.case, backend="export", dynamic=True, configuration="c", settings="{}")
    other = replace(
        job,
        case=case,
        inductor_config={"freezing": True},
        compile_mode="max-autotune",
        tolerance=0.1,
        scratch="/elsewhere",
    )
    assert read(other) == {"differ": None, "transient_bytes": 7, "shared_from": job.case.name}
    assert opened(job).read("outputs") is None


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"weights": "pretrained"},
        {"allocator": "default"},
        {"bind_memory": True},
        {"baseline_dtype": "float64"},
        {"optimizer": "adam"},
        {"inputs": {"size": 3}},
        {"case": Case("s", "m", dtype="amp")},
        {"case": Case("s", "m", batch_size=2)},
        {"case": Case("s", "m", threads=2)},
        {"case": Case("s", "m", scenario="training")},
    ],
)
def test_what_changes_eager_is_not_shared(job, change):
    opened(job).write("memory", {"differ": None})
    assert read(job) is not None
    assert read(replace(job, **change)) is None


def test_other_weights_inputs_packages_or_code_are_not_shared(job, tmp_path):
    file = tmp_path / "net.py"
    file.write_text("a = 1")
    job = replace(job, target=f"{file}:net")
    opened(job).write("memory", {"differ": None})
    assert read(job) is not None
    assert read(job, scale=2.0) is None
    assert read(job, inputs=2.0) is None
    assert read(job, SimpleNamespace(PACKAGES=("patches_torch",))) is None
    file.write_text("a = 2")
    assert read(job) is None


@pytest.mark.parametrize(
    "change",
    [{"shared": ""}, {"role": "replica"}, {"until_oom": True}, {"case": Case("s", "m", device="cuda")}],
)
def test_such_a_case_shares_nothing(job, change):
    job = replace(job, **change)
    assert shared_eager.open_shared(job, side_of(replace(job, case=Case("s", "m"))), PLAIN) is None


def test_tensors_whose_bytes_cannot_be_read_are_not_shared(job):
    side = side_of(job)
    side.inputs = (torch.sparse_coo_tensor([[0]], [1.0], (2,), check_invariants=True),)
    assert shared_eager.open_shared(job, side, PLAIN) is None


def test_a_model_with_tensors_that_assert_what_is_done_with_them_shares_nothing(job):
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(torch.ones(2, 2).as_subclass(modules.Opaque))
    side = replace(side_of(job), module=module)
    assert shared_eager.open_shared(job, side, PLAIN) is None


def test_a_file_with_code_counts_as_none(job, tmp_path):
    class Code:
        def __reduce__(self):
            return print, ("never",)

    opened(job).write("memory", {"differ": None})
    (file,) = tmp_path.iterdir()
    torch.save({"differ": Code()}, file)
    assert read(job) is None


def test_a_broken_file_counts_as_none(job, tmp_path):
    opened(job).write("memory", {"differ": None})
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:20])
    assert read(job) is None


def test_what_is_too_large_or_is_no_plain_value_is_left_out(job, tmp_path, monkeypatch):
    opened(job).write("outputs", {"eager": lambda: None})
    assert opened(job).read("outputs") is None
    monkeypatch.setattr(shared_eager, "_MOST_BYTES", 8)
    opened(job).write("outputs", {"eager": torch.zeros(3)})
    assert opened(job).read("outputs") is None
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".part"]
