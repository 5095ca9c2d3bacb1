"""Back ends of a user's own that change the module of both sides, or settings, and models that do."""

from __future__ import annotations

import contextlib
import copy

import pytest

from perfdash.records import Case, Job
from tests.lazy import lazy

torch = lazy("torch")
nn = lazy("torch.nn")
shared_state = lazy("perfdash.worker.shared_state")
failures = lazy("perfdash.worker.failures")
modules = lazy("tests.worker.modules")
worker_case = lazy("perfdash.worker.case")

NET = """
import torch
from torch import nn

class ChangesItself(nn.Module):
    '''Its first call registers a hook, replaces a method and writes a weight in place.'''
    def __init__(self):
        super().__init__()
        self.table, self.layer, self.first = nn.Embedding(4, 8, max_norm=0.1), nn.Linear(8, 8), True
        self.register_buffer("calls", torch.zeros(1))
    def forward(self, at):
        if self.first:
            self.first = False
            self.layer.register_forward_hook(lambda module, inputs, output: output + 1)
            self.layer.forward = self.layer.forward
        self.kept = torch.ones(3)
        self.calls = self.calls + 1
        return self.layer(self.table(at))

def make(batch_size):
    torch.manual_seed(0)
    return ChangesItself(), (torch.arange(4),)

class Hooked(ChangesItself):
    def forward(self, at):
        self.table.register_forward_hook(lambda module, inputs, output: output)
        return self.layer(self.table(at))

def hooked(batch_size):
    return Hooked(), (torch.arange(4),)

class Sets(nn.Module):
    '''Its calls set what a back end of one's own must not set.'''
    def forward(self, x):
        torch.backends.cudnn.benchmark = True
        return x + 1

def sets(batch_size):
    return Sets(), (torch.randn(4, 8),)

def plain(batch_size):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.0)), (torch.randn(4, 8),)
"""
BACKEND = """
import copy
import torch

{}
CAPTURES = False
SCENARIOS = ("inference", "training")

def prepare(module, inputs, job):
    {}
    return module
"""
CHANGES = {
    "module.compile(backend='eager')": "forward of Sequential",
    "module.forward = torch.compile(module.forward, backend='eager')": "forward of Sequential",
    "module[0].register_forward_hook(lambda module, inputs, output: output)": "hooks of 0",
    "module[0] = copy.deepcopy(module[0])": "module 0",
    "module.train()": "module Sequential",
    "module[0].weight.data.mul_(2)": "parameter 0.weight",
    "module[0].weight.data = torch.round(module[0].weight)": "parameter 0.weight",
    "module[0].weight = copy.deepcopy(module[0].weight)": "parameter 0.weight",
    "module[0].weight.data = module[0].weight.data.t()": "parameter 0.weight",
    "module.half()": "parameter 0.weight",
    "kind = type(module[2]); kind.forward = lambda self, x: 2 * kind.before(self, x)": "class of 2",
    "module[2].__class__ = type('Other', (type(module[2]),), {'forward': torch.exp})": "class of 2",
}
# What a conversion does that patches the module for as long as it takes.
PUT_BACK = (
    "module.forward, before = len, module.forward; module.forward = before",
    "kind = type(module[2]); kind.forward = len; kind.forward = kind.before",
)


# What a back end may set for the process, and back; as perfdash names it, what it becomes.
SETTINGS = {
    "torch.set_num_threads(3)": ("torch.get_num_threads", "3"),
    "torch.set_float32_matmul_precision('medium')": ("torch.get_float32_matmul_precision", "medium"),
    "torch.backends.cudnn.benchmark = True": ("torch.backends.cudnn.benchmark", "True"),
    "torch.backends.cuda.enable_flash_sdp(False)": ("torch.backends.cuda.flash_sdp_enabled", "False"),
    "torch.set_default_dtype(torch.float64)": ("torch.get_default_dtype", "torch.float64"),
    "torch.set_grad_enabled(False)": ("torch.is_grad_enabled", "False"),
    "torch.use_deterministic_algorithms(True)": ("torch.are_deterministic_algorithms_enabled", "True"),
}


@pytest.fixture
def settings(monkeypatch):
    """Torch's settings are set back after the test."""
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.benchmark = False
    torch.backends.cuda.enable_flash_sdp(True)
    torch.set_flush_denormal(False)
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """The events of a case of a function under a back end that does this to the module.

    `imported`: what the file of the back end does when it is imported.
    """
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.setattr(worker_case, "in_child", lambda name, work: work())
    for cost in ("latency", "memory"):
        monkeypatch.setattr(worker_case.CaseProcess, cost, lambda self: None)

    def measure(does, function="plain", scenario="inference", imported="", threads=1):
        file = tmp_path / "mine.py"
        file.write_text(BACKEND.format(imported, does))
        case = Case("own", "m", backend="mine", scenario=scenario, threads=threads)
        target = f"{tmp_path / 'net.py'}:{function}"
        job = Job(case=case, loader="python", target=target, backend_file=str(file), scratch=str(tmp_path))
        events = {}
        worker_case.run_case(job, lambda event, **facts: events.update({event: facts}))
        return events

    return measure


def sequential():
    """A model whose last part has a class of its own, which a test may patch."""
    last = type("Last", (nn.ReLU,), {"forward": nn.ReLU.forward, "before": nn.ReLU.forward})
    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.0), last()).eval()


@pytest.mark.parametrize("does", CHANGES)
def test_changes_of_a_module_are_named(does):
    module = sequential()
    watched = shared_state.SharedState(module, values=True)
    assert watched.changes() == []
    exec(does, {"module": module, "copy": copy, "torch": torch})
    assert CHANGES[does] in watched.changes()
    assert CHANGES[does] not in watched.changes(without=[CHANGES[does]])


@pytest.mark.parametrize("does", PUT_BACK)
def test_a_forward_that_was_put_back_is_no_change(does):
    module = sequential()
    watched = shared_state.SharedState(module, values=True)
    exec(does, {"module": module})
    assert watched.changes() == []


def test_of_a_graph_module_the_code_counts():
    module = torch.fx.symbolic_trace(sequential())
    watched = shared_state.SharedState(module, values=True)
    module.recompile()
    assert watched.changes() == []
    last = next(node for node in module.graph.nodes if node.op == "output").args[0]
    last.replace_all_uses_with(last.args[0])
    module.recompile()
    assert watched.changes() == ["class of Sequential"]


def test_who_changes_a_class_is_told_that_a_copy_has_it_too():
    watched = shared_state.SharedState(module := sequential(), values=True)
    type(module[2]).forward = torch.exp
    with pytest.raises(failures.Unmeasurable, match=r"class of 2\. .*copy\.deepcopy\(module\), and no class"):
        watched.refuse_changes([], "mine")


def test_only_in_training_it_counts_which_parameters_take_a_gradient():
    for values in (True, False):
        watched = shared_state.SharedState(module := sequential(), values=values)
        module.requires_grad_(False)
        assert watched.changes() == ([] if values else ["parameter 0.weight", "parameter 0.bias"])


def test_tensors_without_plain_bytes_have_no_checksum():
    module = nn.Module()
    module.register_parameter("sparse", nn.Parameter(torch.eye(3).to_sparse()))
    module.register_parameter("meta", nn.Parameter(torch.empty(3, device="meta")))
    module.register_parameter("empty", nn.Parameter(torch.empty(0, 3)))
    module.register_parameter("opaque", nn.Parameter(torch.ones(2, 2).as_subclass(modules.Opaque)))
    module.register_parameter("scalar", nn.Parameter(torch.tensor(1.0, dtype=torch.bfloat16)))
    assert shared_state.SharedState(module, values=True).changes() == []


@pytest.mark.parametrize("does", SETTINGS)
def test_settings_of_the_process_that_change_are_named(settings, does):
    name, value = SETTINGS[does]
    watched = shared_state.SharedState(None, values=True)
    assert watched.changes() == []
    exec(does, {"torch": torch})
    assert name in watched.changes()
    assert name not in watched.changes(without=[name])
    with pytest.raises(failures.Unmeasurable, match=rf"eager side as well: .*became {value}\)"):
        watched.refuse_changes([], "mine")


@pytest.mark.slow
def test_a_back_end_that_sets_what_holds_for_eager_too_fails(settings, measured):
    failed = measured("torch.backends.cudnn.benchmark = True")["failed"]
    assert (failed["status"], failed["phase"]) == ("fail_to_run", "compile")
    assert failed["message"] == (
        "back end mine changes settings of the process, which hold for the eager side as well: "
        "torch.backends.cudnn.benchmark (False became True). Let the function that `prepare` returns set "
        "them, and set them back"
    )


def test_a_back_end_that_sets_it_when_it_is_imported_fails_too(settings, measured):
    failed = measured("pass", imported="torch.backends.cudnn.benchmark = True")["failed"]
    assert (failed["status"], failed["phase"]) == ("fail_to_run", "start")
    assert "became True" in failed["message"]


@pytest.mark.slow
def test_what_the_case_sets_after_the_import_may_be_set_there(settings, measured):
    events = measured("pass", imported="torch.set_num_threads(7); torch.set_grad_enabled(False)")
    assert "failed" not in events, events.get("failed")


@pytest.mark.parametrize(("device", "refused"), [("cpu", True), ("cuda", False)])
def test_on_a_gpu_the_run_decides_on_tf32_after_the_import(settings, device, refused):
    """device.use_tf32 sets it when the GPU is opened."""
    case = Case("own", "m", backend="mine", device=device)
    job = Job(case=case, loader="python", target="net.py:plain", backend_file="mine.py", scratch="")
    outcome = pytest.raises(failures.Unmeasurable) if refused else contextlib.nullcontext()
    with outcome, shared_state.settings_kept(job):
        torch.set_float32_matmul_precision("high")


@pytest.mark.slow
def test_denormal_numbers_that_become_0_are_noted(settings, measured):
    """Kernels of inductor in torch 2.4 do that where they are loaded: gcc before 13 links -ffast-math so."""
    events = measured("torch.set_flush_denormal(True)")
    assert "failed" not in events, events.get("failed")
    (note,) = events["compiled"]["notes"]
    assert note.startswith("since back end mine compiled, eager's denormal numbers are 0 as well")


@pytest.mark.slow
def test_a_back_end_that_changes_the_module_in_place_fails_with_the_way_out(measured):
    failed = measured("module.compile(backend='eager')")["failed"]
    assert (failed["status"], failed["phase"]) == ("fail_to_run", "compile")
    assert failed["message"] == (
        "back end mine changes the model, which is the eager side as well: forward of Sequential. Let "
        "`prepare` change a copy: copy.deepcopy(module)"
    )


@pytest.mark.slow
def test_weights_that_are_written_in_place_are_noticed(measured):
    assert "parameter 0.weight" in measured("module[0].weight.data.mul_(2)")["failed"]["message"]


@pytest.mark.slow
def test_hooks_of_the_models_own_hide_no_change_of_its_forward(measured):
    does = "module.table.forward = torch.compile(module.table.forward, backend='eager')"
    assert "forward of table" in measured(does, "hooked")["failed"]["message"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("does", "function", "scenario"),
    [
        ("module = copy.deepcopy(module).half().float()", "plain", "inference"),
        ("module = torch.compile(module, backend='aot_eager')", "plain", "inference"),
        ("module = torch.compile(module, backend='aot_eager')", "plain", "training"),
        ("pass", "make", "inference"),
        ("pass", "sets", "inference"),
        ("module = torch.compile(module, backend='aot_eager')", "make", "inference"),
    ],
)
def test_what_changes_nothing_or_no_more_than_the_models_own_calls_is_measured(
    settings, measured, does, function, scenario
):
    events = measured(does, function, scenario, threads=2)
    assert "failed" not in events, events.get("failed")
    assert events["accuracy"]["status"] in ("pass", "eager_two_runs_differ")
