"""Plan a day on a GPU: the steps, what they cost, what is left out where the minutes do not suffice. Pure.

Standard library only, and nothing of perfdash: day.py runs what is planned here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

_TRUTH = "tests/truth/gpu.toml"
UNIT_BYTES = 64 << 20  # a buffer of tests/truth/gpu_models.py
SHORTEST_S = 45.0  # a step is not begun for less
FINISH_S = 90.0  # that tables and plots take, kept free of the budget
_PACE = (0.2, 6.0)  # by how much measured durations may scale the expected ones


@dataclass(frozen=True)
class Step:
    """One step of the day. `items` (models or batch sizes) may be left out from the end, down to `least`.

    `words`: of `perfdash run` where `runs`, which then can be resumed; else a whole command after the
    interpreter. The steps are in the order of their importance, and so are the items of each.
    """

    name: str
    what: str
    words: tuple[str, ...]
    fixed_s: float
    flag: str = ""
    items: tuple[str, ...] = ()
    item_s: float = 0.0
    least: int = 1
    must: bool = False  # never left out
    more: bool = False  # of what an earlier step has some of already
    runs: bool = True

    @property
    def expected_s(self) -> float:
        """About how long it takes with all of its items."""
        return self.fixed_s + len(self.items) * self.item_s

    def command(self) -> list[str]:
        """Its words with the items that are left."""
        return [*self.words, *([self.flag, ",".join(self.items)] if self.items else [])]


@dataclass(frozen=True)
class Cut:
    """What is left out of a step: the whole of it (no items left), or its last items."""

    step: str
    items: tuple[str, ...]
    whole: bool

    def __str__(self) -> str:
        names = f" ({', '.join(self.items)})" if self.items else ""
        return f"{self.step}: {'left out' if self.whole else 'shortened'}{names}"


def steps(device: str) -> tuple[Step, ...]:
    """The steps of a day on a device, the most important first; of a CPU small stand-ins of each."""
    on_gpu = device == "cuda"
    common = ("--device", device, "--no-history", "--timeout", "240", "--retry-pause", "1")
    dtypes = "bfloat16,float32,float16" if on_gpu else "float32"
    suites = ("--suite", "timm,huggingface,torchbench", "--dtype", dtypes, *common)
    graphs = ("--compile-mode", "reduce-overhead")
    item_s, fixed_s = (75.0, 35.0) if on_gpu else (60.0, 40.0)
    # Three of each suite, then seven more of each.
    models = _MODELS if on_gpu else (("dcgan", "lcnet_050"), ("lennard_jones",), ("resmlp_12_224",))
    ways = "inductor,eager,torchscript,inductor-max-autotune" if on_gpu else "eager,torchscript"
    sizes = ("1", "32", "8", "16") if on_gpu else ("1", "8")
    dtype = "float16" if on_gpu else "bfloat16"
    techniques = ("--suite", "techniques", "--backend", ways, "--dtype", dtype, *common)
    images = ("resnet50", "vit_b_16") if on_gpu else ("digits_cnn", "digits_lstm")
    decoder = "gpt2_mha_1b3" if on_gpu else "gpt2_mha_small"
    batches = ("1", "16", "128", "512", "1024", "1920") if on_gpu else ("1", "2")
    trained = ("resnet50_in_place", "vgg16_in_place", "resnet50_kept_in_place")
    training = ("--suite", "training-variants", *common, *(() if on_gpu else ("--batch-size", "1")))

    def suite(number: int, name: str, what: str, words: tuple[str, ...] = ()) -> Step:
        some = models[number - 1]
        named = f"{name}-{number}"
        return Step(named, what, (*suites, *words), fixed_s, "--models", some, item_s, more=number > 1)

    return (
        Step("doctor", "what perfdash says of this machine", ("-m", "perfdash", "doctor"), 15,
             must=True, runs=False),
        Step("cuda-tests", "the tests that need a GPU" if on_gpu else "the tests of the stand-in device",
             ("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/truth/test_gpu.py",
              *(("-m", "cuda") if on_gpu else ("-m", "not cuda"))), 150 if on_gpu else 30,
             must=True, runs=False),
        Step("truth", "models whose time, memory and kernels are known",
             ("--suite", _TRUTH, "--backend", "aot-eager,inductor", *common),
             fixed_s, "--models", ("products", "buffers", "additions"), 40, must=True),
        suite(1, "suites", "models of each suite with inductor"),
        suite(1, "cudagraphs", "the same models with CUDA graphs", graphs),
        Step("resnet50", "techniques by batch size", (*techniques, "--models", images[0]), fixed_s,
             "--batch-size", sizes, 75 if on_gpu else 40),
        Step("generation", "one decoder until memory ends",
             ("--suite", "generation", "--models", decoder, "--backend", "inductor" if on_gpu else "eager",
              "--dtype", dtype, *common), fixed_s, "--batch-size", batches, 50),
        Step("training", "training of variants", training, fixed_s, "--models", trained,
             40 if on_gpu else 90),
        Step("vit_b_16", "techniques by batch size", (*techniques, "--models", images[1]), fixed_s,
             "--batch-size", sizes, 75 if on_gpu else 40, more=True),
        suite(2, "suites", "more models of each suite"),
        suite(3, "suites", "the rest of ten models of each suite"),
        suite(2, "cudagraphs", "these with CUDA graphs", graphs),
        suite(3, "cudagraphs", "the rest with CUDA graphs", graphs),
    )  # fmt: skip


# Ten of each suite: one of each first, in the order of what they add.
_MODELS: tuple[tuple[str, ...], ...] = (
    ("resnet50", "BertForMaskedLM", "deit_base_distilled_patch16_224"),
    ("T5Small", "convnext_base", "hf_GPT2", "DistilBertForMaskedLM", "mobilenetv3_large_100", "vgg16",
     "ElectraForCausalLM", "swin_base_patch4_window7_224", "densenet121"),
    ("OPTForCausalLM", "tf_efficientnet_b0", "mobilenet_v2", "AlbertForMaskedLM", "regnety_002",
     "alexnet", "DistillGPT2", "beit_base_patch16_224", "dcgan", "RobertaForCausalLM", "ghostnet_100",
     "hf_Bert", "GPT2ForSequenceClassification", "mixer_b16_224", "shufflenet_v2_x1_0",
     "CamemBert", "inception_v3", "pytorch_unet"),
)  # fmt: skip


def fit(planned: Sequence[Step], budget_s: float, pace: float = 1.0) -> tuple[list[Step], list[Cut]]:
    """The steps that fit into a budget, and what is left out: the least important cases first.

    `pace`: how much longer than expected steps have taken so far. First the steps that hold more of the same
    (`more`) are shortened and left out, from the last one; then the others are shortened to `least` items;
    then they are left out, too. A step that must run stays; it is shortened last.
    """
    left = {step.name: step for step in planned}

    def excess_s() -> float:
        return sum(step.expected_s for step in left.values()) * pace - budget_s

    def shorten(step: Step) -> None:
        droppable = len(step.items) - step.least
        if droppable > 0 and excess_s() > 0:
            count = len(step.items) - min(droppable, math.ceil(excess_s() / (step.item_s * pace)))
            left[step.name] = replace(step, items=step.items[:count])

    def leave_out(step: Step) -> None:
        if not step.must and excess_s() > 0:
            del left[step.name]

    backwards = list(planned)[::-1]
    for step in backwards:
        if step.more:
            whole = replace(step, items=step.items[: step.least])
            # A step of which not even the first item would fit is not shortened, but left out.
            if excess_s() > (step.expected_s - whole.expected_s) * pace:
                leave_out(step)
            else:
                shorten(step)
    others = [step for step in backwards if not step.more and not step.must]
    for step in others:
        shorten(step)
    for step in others:
        leave_out(step)
    for step in backwards:
        if step.must:
            shorten(step)
    cuts = []
    for step in planned:
        kept = left.get(step.name)
        if kept is None:
            cuts.append(Cut(step.name, step.items, whole=True))
        elif len(kept.items) < len(step.items):
            cuts.append(Cut(step.name, step.items[len(kept.items) :], whole=False))
    return list(left.values()), cuts


def pace_of(finished: Sequence[tuple[float, float]]) -> float:
    """How much longer than expected steps took: from (expected, taken) seconds of those that are done."""
    expected, taken = sum(e for e, _ in finished), sum(t for _, t in finished)
    return min(max(taken / expected, _PACE[0]), _PACE[1]) if expected else 1.0


# (model, back end, what is known, its value, by how much it may be off)
_KNOWN = (
    ("products", "aot-eager", "speedup", 4.0, 0.05),
    ("buffers", "aot-eager", "eager_peak_bytes", 4.0 * UNIT_BYTES, 0.03),
    ("buffers", "inductor", "compression_ratio", 2.0, 0.03),
    ("additions", "aot-eager", "kernels of eager", 200.0, 0.0),
)


def known_values(records: Sequence[Mapping[str, Any]], device: str) -> list[dict[str, Any]]:
    """Known beside measured, of the step `truth`: {model, backend, what, known, measured, holds}.

    A value that was not measured has `measured` None and does not hold. Kernels are counted on a GPU only.
    """
    by_case = {(record["case"]["model"], record["case"]["backend"]): record for record in records}
    rows = []
    for model, backend, what, known, off in _KNOWN:
        if what == "kernels of eager" and device == "cpu":
            continue
        record = by_case.get((model, backend))
        if record is None:  # its model was left out
            continue
        measured = _measured(record, what)
        holds = measured is not None and abs(measured - known) <= off * known
        rows.append({"model": model, "backend": backend, "what": what, "known": known,
                     "measured": measured, "holds": holds})  # fmt: skip
    return rows


def _measured(record: Mapping[str, Any], what: str) -> float | None:
    if what == "speedup":
        return (record.get("speedup") or {}).get("value")
    if what == "kernels of eager":
        work = (record.get("conditions") or {}).get("gpu_work") or {}
        return (work.get("eager") or {}).get("kernels")
    value: float | None = record.get(what)
    return value


def summary(day: Mapping[str, Any], records: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The page of a day in Markdown. `day`: as day.py keeps it; `records`: the results by step."""
    lines = [
        f"# A day on {day.get('gpu') or 'the stand-in device (cpu)'}",
        "",
        f"{day['started']}, {day['host']}: torch {day.get('torch') or 'unknown'}, {day['minutes']:g} minutes "
        f"allowed, {day['spent_s'] / 60:.1f} used. Made by `ci/gpu_day.sh --device {day['device']}`.",
        "",
        "| step | what | state | minutes | cases | passed |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, step in day["steps"].items():
        results = records.get(name, ())
        passed = sum(str(record["status"]).startswith("pass") for record in results)
        counts = f"{len(results)} | {passed}" if results else " | "
        lines.append(f"| {name} | {step['what']} | {step['state']} | {step['spent_s'] / 60:.1f} | {counts} |")
    if day["cuts"]:
        lines += ["", "Left out, since the minutes did not suffice:", ""]
        lines += [f"- {cut}" for cut in day["cuts"]]
    known = known_values(records.get("truth", ()), day["device"])
    if known:
        lines += ["", "## Known and measured", "", "| model | back end | what | known | measured | |",
                  "| --- | --- | --- | --- | --- | --- |"]  # fmt: skip
        lines += [
            f"| {row['model']} | {row['backend']} | {row['what']} | {row['known']:g} | "
            f"{'not measured' if row['measured'] is None else format(row['measured'], '.6g')} | "
            f"{'holds' if row['holds'] else 'DOES NOT HOLD'} |"
            for row in known
        ]
    work = [_work_row(name, record) for name, every in records.items() for record in every]
    rows = [row for row in work if row]
    if rows:
        lines += ["", "## Launches", "", "Milliseconds a call: eager | back end.", "",
                  "| step | case | kernels | launches | launching | GPU busy | call |",
                  "| --- | --- | --- | --- | --- | --- | --- |", *rows]  # fmt: skip
    return "\n".join([*lines, ""])


def _work_row(step: str, record: Mapping[str, Any]) -> str | None:
    work = (record.get("conditions") or {}).get("gpu_work") or {}
    if not work:
        return None

    def both(name: str) -> str:
        values = [(work.get(side) or {}).get(name) for side in ("eager", "backend")]
        return " / ".join("-" if value is None else format(value, ".4g") for value in values)

    calls = [(record.get(f"{side}_ms") or {}).get("median") for side in ("eager", "backend")]
    call = " / ".join("-" if value is None else format(value, ".4g") for value in calls)
    case = record["case"]
    name = f"{case['model']} {case['dtype']} bs{case['batch_size']} {case['backend']}"
    cells = [both(column) for column in ("kernels", "launches", "launch_ms", "gpu_busy_ms")]
    return f"| {step} | {name} | {' | '.join(cells)} | {call} |"
