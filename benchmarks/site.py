"""The site at full size: first build, a night's update, sizes, and how soon a model's page can be used.

    python benchmarks/history.py big.db        # five years of 160 models in 12 configurations
    python benchmarks/site.py big.db --out FOLDER [--no-browser]

FOLDER is new. A night is put into the store (each call adds one) between the two builds. Wall time says
little where the machine does other work besides: CPU seconds and the load stand beside it.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import time
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

from history import night

from perfdash.detect.nightly_judging import judge_new
from perfdash.history.ingest import take_in
from perfdash.history.queries import list_runs
from perfdash.history.store import open_store
from perfdash.site.build import build, cores


def timed(title: str, work: Callable[[], object]) -> None:
    """Prints what it took: wall and CPU seconds, children's included, and the load meanwhile."""
    start, cpu = time.perf_counter(), _cpu()
    made = work()
    wall, spent = time.perf_counter() - start, _cpu() - cpu
    load = os.getloadavg()[0]
    print(
        f"{title:<36} {wall:7.1f} s wall {spent:7.1f} s CPU  (load {load:.1f} on {cores()} core(s)): {made}",
        flush=True,
    )


def _cpu() -> float:
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def sizes(site: Path) -> None:
    """The largest page of each kind, and the whole."""
    kinds = {
        "overview": "index.html", "model": "beds/*/models/*.html", "suite": "beds/*/suites/*.html",
        "compare": "beds/*/compare.html", "data of a night": "beds/*/data/*.js",
    }  # fmt: skip
    for title, pattern in kinds.items():
        sizes = [path.stat().st_size for path in site.glob(pattern)]
        print(f"{title:<36} {len(sizes):5} files, largest {max(sizes) / 1e3:8.1f} kB")
    every = [path for path in site.rglob("*") if path.is_file()]
    kept = sum(path.stat().st_size for path in every if ".perfdash-site" in path.parts)
    whole = sum(path.stat().st_size for path in every) - kept
    print(f"{'the site':<36} {whole / 1e6:8.1f} MB, and {kept / 1e6:.1f} MB kept for the next build")


def in_browser(site: Path, pages: int = 9) -> None:
    """Milliseconds until a model's page is loaded whole, in headless Chromium, each opened once."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu"):
        options.add_argument(word)
    driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
    try:
        files = sorted(site.glob("beds/*/models/*.html"))
        spent: dict[str, list[float]] = {"domInteractive": [], "loadEventEnd": []}
        for path in files[:: max(1, len(files) // pages)][:pages]:
            driver.get(path.as_uri())
            time.sleep(0.2)
            timing = driver.execute_script("return performance.getEntriesByType('navigation')[0].toJSON()")
            for name, values in spent.items():
                values.append(float(timing[name]))
        for name, values in spent.items():
            print(
                f"{'a model page in Chromium, ' + name:<44} median {statistics.median(values):6.0f} ms, "
                f"worst {max(values):6.0f} ms of {len(values)}"
            )
    finally:
        driver.quit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--no-browser", action="store_true")
    arguments = parser.parse_args()
    with open_store(arguments.address, create=False) as store:
        timed("first build", lambda: build(store, arguments.out))
        with store.read() as connection:
            (last,) = list_runs(connection, latest=1)
        day = date.fromisoformat(last.started[:10]) + timedelta(days=1)
        take_in(store, [night(day, day.toordinal())])
        timed("a night judged (no part of the site)", lambda: len(judge_new(store)))
        timed("update after one more night", lambda: build(store, arguments.out))
        timed("nothing new", lambda: build(store, arguments.out))
    sizes(arguments.out)
    if not arguments.no_browser:
        in_browser(arguments.out)


if __name__ == "__main__":
    main()
