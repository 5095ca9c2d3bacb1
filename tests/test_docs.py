"""The documents: links that lead somewhere, a place for every page, a short README, plain sentences."""

from __future__ import annotations

import itertools
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from perfdash.runner.plan import make_plan
from perfdash.settings import resolve
from perfdash.suites.suite_file import load_suite, suite_names

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
# Sentences that readers had to read twice. They stay out of documents, help, messages, tables and pages.
RIDDLES = [
    "do to real models, tonight",
    "leaves a row that says why",
    "exit with 1 when a row is so",
    "a nightly lacks",
    "by the machine's fault",
    "had the core for themselves",
    "what a night brought",
    "a nightly says that it began",
    "Said again with its",
    "no longer to come from the heartbeat",
    "was planned otherwise",
    "A smaller change is none",
    "stands a command of your own",
    '"For programs."',
    "new failures (",
    "Those that live first",
    "the last like it",
    "What changed and still stands",
    "Taken in as",
    "What changed is not told",
    "half of the cases of those about them",
    "as the comment on the last night tells them",
    "A ladder, a merge that is descended into",
    "An answer of GitHub that is none",
    "what tells most for its cost",
    "wrongly believed to be a change",
    "One that was to tell the spread",
    "these are the phases as they are",
    "Memory that only this lacks",
    "how the house is laid out",
]


def links(text):
    """(target, anchor) of the relative links and pictures of a Markdown text."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield path, anchor


def anchors(text):
    """The anchors of the headings of a Markdown text."""
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links(page):
    for path, anchor in links(page.read_text()):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {path}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target.read_text()), f"{page.name}: {path}#{anchor}"


def test_a_broken_link_is_seen():
    text = "[a](b.md#c) ![d](e.png) [f](https://g)\n```\n[h](i)\n```"
    assert list(links(text)) == [("b.md", "c"), ("e.png", "")]


def test_every_page_has_one_place_in_the_site():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    listed = []
    for entry in nav:
        (content,) = entry.values()
        listed += [content] if isinstance(content, str) else [next(iter(page.values())) for page in content]
    assert len(listed) == len(set(listed))
    assert set(listed) == {str(page.relative_to(ROOT)) for page in PAGES}


def test_the_table_of_suites_counts_their_models():
    rows = re.findall(r"^\| `([\w-]+)` \| (\d+) \|", (ROOT / "docs" / "suites.md").read_text(), re.MULTILINE)
    assert {name: int(count) for name, count in rows} == {
        name: len(load_suite(name).models) for name in suite_names()
    }


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


def runs_of_suites(text):
    """The `perfdash run --suite ...` of a document's code blocks, as words."""
    blocks = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)).replace("\\\n", " ")
    for line in blocks.splitlines():
        _, found, rest = line.partition("perfdash run ")
        if found and "--suite" in rest:
            yield [word.strip("'\"") for word in rest.partition(" #")[0].split()]


def test_commands_of_several_lines_are_seen():
    block = "perfdash run \\\n  --suite b --models 'c*'  # d\nperfdash run e\n"
    text = f"`perfdash run --suite a`\n```\n{block}```\n"
    assert list(runs_of_suites(text)) == [["--suite", "b", "--models", "c*"]]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_the_models_of_every_command_exist(page):
    for words in runs_of_suites(page.read_text()):
        flags = {}
        for option, value in itertools.pairwise(words):
            if option in ("--suite", "--models", "--scenario", "--backend"):
                key = option.removeprefix("--")
                flags[key] = value if key == "scenario" else tuple(value.split(","))
        plan, _ = make_plan(resolve(flags, environ={})[0], uncut=True)  # UsageError where there is none
        assert any(planned.skip_reason is None for planned in plan.cases), " ".join(words)


def test_shards_that_are_merged_by_a_pattern_are_in_a_folder_of_their_night():
    """In a folder of all nights the pattern also gives the history, other shards and merged runs."""
    text = (ROOT / "docs" / "cluster.md").read_text().replace("\\\n", " ").replace('"', "").replace("'", "")
    measured = [Path(folder) for folder in re.findall(r"perfdash run .*--shard.*--out +(\S+)", text)]
    merged = [Path(folder) for folder in re.findall(r"perfdash merge-shards +(\S+)/\*", text)]
    assert len(merged) == 2
    assert [folder.parent for folder in merged] == [folder.parent for folder in measured]
    assert all(folder.name.startswith("$") for folder in measured), "another one each night"


def test_no_riddle_is_left():
    names = subprocess.run(
        ["git", "ls-files", "--", "*.md", "perfdash", "ci", "suites", "configurations", "Jenkinsfile"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    found = []
    for name in names:
        if name.startswith("results/"):  # what a perfdash of that day wrote
            continue
        text = (ROOT / name).read_text(errors="replace")
        found += [f"{name}: {riddle}" for riddle in RIDDLES if riddle in text]
    assert found == []
