"""Makes the pictures of docs/site.md: a made-up history, its site, and Chromium's view of each page.

    python docs/screenshots.py [--only-store FILE] [--to docs/images]

Every number in it is drawn at random; the models' names are real, their latencies are not.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import tempfile
from datetime import date, timedelta
from pathlib import Path

import numpy as np

from perfdash.detect.nightly_judging import judge_new
from perfdash.history.ingest import take_in
from perfdash.history.results import Imported, Row, RunRow, case_digest
from perfdash.history.store import Store, open_store
from perfdash.records import Case
from perfdash.site.build import build

MODELS = {
    "torchbench": ["alexnet", "dcgan", "mnasnet1_0", "resnet18", "resnet50", "squeezenet1_1", "vgg16"],
    "huggingface": ["AlbertForMaskedLM", "BartForCausalLM", "BertForMaskedLM", "DistilBertForMaskedLM",
                    "GPT2ForSequenceClassification", "T5Small"],
    "timm": ["adv_inception_v3", "beit_base_patch16_224", "convnext_base", "deit_base", "dm_nfnet_f0",
             "ghostnet_100", "mixnet_l", "mobilenetv3_large_100", "regnety_002", "swin_base", "visformer"],
}  # fmt: skip
CONFIGURATIONS = [
    {"dtype": "float32", "threads": 1},
    {"dtype": "float32", "threads": 32},
    {"dtype": "bfloat16", "threads": 1},
]  # fmt: skip
FIRST = date(2026, 2, 2)
# Models, night, times their compiled latency from then on.
SLOWER = (("ghostnet_100", "mixnet_l", "mobilenetv3_large_100", "regnety_002", "mnasnet1_0"), 224, 1.16)
FASTER = (("GPT2ForSequenceClassification",), 230, 0.8)
BROKEN = ("swin_base", 238)
UNCAPTURED = "dcgan"
_COLOURS = 256  # of a picture


def night(number: int, host_class: str = "Xeon Platinum 8480 x 1") -> Imported:
    """A night of the made-up history."""
    draw = np.random.default_rng(number)
    day = FIRST + timedelta(days=number)
    rows = []
    for suite, models in MODELS.items():
        for model in models:
            for configuration in CONFIGURATIONS:
                case = Case(suite, model, batch_size=1, **configuration)
                rows.append(_row(case, number, draw))
    torch = f"2.{13 + number // 120}.0"
    run = RunRow(
        f"{day}T01-00-00Z_xeon7", f"{day}T01:00:00Z", "perfdash", f"runs/{day}T01-00-00Z_xeon7", "xeon7",
        host_class,
        environment={
            "cpu": "Intel(R) Xeon(R) Platinum 8480+", "governor": "performance", "os": "Debian 12",
            "kernel": "6.1.0-30" if number < 200 else "6.1.0-31",
            "worker": {
                "torch": torch, "torch_git_version": f"{commit(number)}",
                "python": "3.11.9", "packages": {"timm": "1.0.31", "transformers": "4.57.1"},
            },
        },
        noise={"null": {"worst": float(abs(0.006 + 0.002 * draw.standard_normal()))}},
        ended=f"{day}T05:10:00Z", expected=len(rows), perfdash="0.1", uid=f"{day}",
    )  # fmt: skip
    return Imported(run, tuple(rows))


def commit(number: int) -> str:
    """torch is another one every two weeks."""
    return hashlib.sha1(f"made up {number // 14}".encode()).hexdigest()


def _row(case: Case, number: int, draw: np.random.Generator) -> Row:
    own = np.random.default_rng(int(case_digest(case)[:8], 16))
    eager = float(np.exp(own.uniform(2, 5.5))) / (6 if case.threads > 1 else 1)
    ratio = float(np.exp(own.normal(0.12, 0.22)))
    compile_s, memory = float(own.uniform(12, 60)), float(np.exp(own.normal(0.03, 0.08)))
    compiled = eager / ratio
    if case.model in SLOWER[0] and number >= SLOWER[1]:
        compiled *= SLOWER[2]
    if case.model in FASTER[0] and number >= FASTER[1]:
        compiled *= FASTER[2]
    noise = np.exp(0.008 * draw.standard_normal(6))
    eager, compiled = eager * float(noise[0]), compiled * float(noise[1])
    if case.model == BROKEN[0] and number >= BROKEN[1] and case.dtype == "float32":
        error = {"type": "InductorError", "message": "LoweringException: AssertionError: -1 not in range\n"
                 "  target: aten.roll.default"}  # fmt: skip
        return Row(case, "fail_to_run", {"wall_s": 12.0, "eager_ms": eager}, f"{number}",
                   details={"error": error, "failed_phase": "compile"})  # fmt: skip
    captured = case.model != UNCAPTURED
    compiled = compiled if captured else eager * float(noise[2])
    speedup = eager / compiled
    breaks = 2 if case.model == "BartForCausalLM" else 0
    values = {
        "eager_ms": eager, "eager_ms_low": eager * 0.994, "eager_ms_high": eager * 1.006,
        "backend_ms": compiled, "backend_ms_low": compiled * 0.993, "backend_ms_high": compiled * 1.007,
        "speedup": speedup, "speedup_low": speedup * 0.972, "speedup_high": speedup * 1.029,
        "compilation_s": compile_s * float(noise[3]) if captured else 0.2,
        "compilation_cpu_s": 1.4 * compile_s * float(noise[4]), "first_call_s": compile_s + 1,
        "compression_ratio": memory, "eager_peak_bytes": 4e8 * memory, "backend_peak_bytes": 4e8,
        "weights_bytes": 1e8, "graphs": 1 + breaks if captured else 0, "graph_breaks": breaks,
        "calls_captured": 240 if captured else 0, "fallbacks": 0, "wall_s": compile_s + 40,
    }  # fmt: skip
    verdict = "faster" if speedup > 1.05 else "slower" if speedup < 0.95 else "inconclusive"
    samples = {
        name: tuple(float(x) for x in level * np.exp(0.01 * draw.standard_normal(100)))
        for name, level in (("eager_ms", eager), ("backend_ms", compiled))
    }
    details = {"conditions": {"clean_fraction": 0.97, "core": 3, "allocator": "steady"}}
    if breaks:
        details["break_reasons"] = ["call_function: print", "data-dependent branch"]
    return Row(case, "pass", values, None, verdict, "pooled", samples=samples, details=details)


def example(store: Store, nights: int = 240) -> None:
    """A made-up history of some nights, judged as they came."""
    for number in range(nights):
        take_in(store, [night(number)])
        if number >= nights - 30:
            judge_new(store)


PICTURES = (  # file, page (glob), width, height, dark
    ("overview", "index.html", 1280, 1000, False),
    ("overview-phone", "index.html", 390, 900, False),
    ("cause", "causes/*.html", 1280, 1000, False),
    ("suite", "beds/*/suites/timm_cpu_float32_t1_*.html", 1280, 1500, False),
    ("model", "beds/*/models/timm_ghostnet-100_cpu_float32_bs1_t1_*.html", 1280, 1400, False),
    ("model-dark", "beds/*/models/timm_ghostnet-100_cpu_float32_bs1_t1_*.html", 1280, 1000, True),
    ("compare", "beds/*/compare.html", 1280, 1000, False),
    ("phone", "beds/*/models/timm_ghostnet-100_cpu_float32_bs1_t1_*.html", 360, 900, False),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only-store", type=Path)
    parser.add_argument("--to", type=Path, default=Path(__file__).parent / "images")
    arguments = parser.parse_args()
    if arguments.only_store:
        with open_store(str(arguments.only_store)) as store:
            example(store)
        return
    with tempfile.TemporaryDirectory() as folder:
        with open_store(f"{folder}/history.db") as store:
            example(store)
            build(store, Path(folder) / "site")
        take(Path(folder) / "site", arguments.to)


def take(site: Path, to: Path) -> None:
    """The pictures of a site, by headless Chromium."""
    from PIL import Image
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(word)
    options.binary_location = "/usr/bin/chromium"
    to.mkdir(parents=True, exist_ok=True)
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        for name, pattern, width, height, dark in PICTURES:
            page = next(iter(sorted(site.glob(pattern))))
            scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
            driver.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride",
                {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
            )
            driver.get(page.as_uri())
            picture = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
            # Few colours are a third of the bytes. An octree keeps those that are seldom, of a verdict.
            few = picture.quantize(_COLOURS, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
            few.save(to / f"site-{name}.png", optimize=True)
    finally:
        driver.quit()


if __name__ == "__main__":
    main()
