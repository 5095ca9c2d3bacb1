"""The documents: links that lead somewhere, a place for every page, a short README, plain sentences."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

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


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 130


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
