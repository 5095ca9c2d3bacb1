"""A bisection without git, builds or workers: scripted levels, with the same noise every time."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field
from pathlib import Path

from perfdash.bisection import events
from perfdash.bisection.engine import DeadEnd, Engine
from perfdash.bisection.environments import BuiltEnvironment, Unbuildable
from perfdash.bisection.journal import Journal
from perfdash.bisection.metrics import METRICS, OF_COMMAND, Reading
from perfdash.bisection.replay import Bisection
from perfdash.bisection.request import BisectionRequest
from perfdash.bisection.sources import Revision
from perfdash.bisection.workbench import question_of


def revision(number, parents=1, prefix=""):
    name, before = f"{prefix}{number:x}".rjust(40, "0"), f"{prefix}{number - 1:x}"
    return Revision(
        id=name,
        label=f"{prefix}{number}",
        title=f"change {number}",
        author="Ann Author",
        date="2026-11-01T00:00:00+00:00",
        parents=(before.rjust(40, "0"), *(f"{n}{number:x}".rjust(40, "f") for n in range(1, parents))),
    )


def revisions(count, merges=()):
    return [revision(number, 2 if number in merges else 1) for number in range(count)]


def noise(*words):
    """A standard normal number that is the same for the same words."""
    seed = int.from_bytes(hashlib.sha256(repr(words).encode()).digest()[:8], "big")
    return random.Random(seed).gauss(0, 1)


@dataclass
class Script:
    """levels: label -> the true value; says: label -> a status word instead of a number."""

    revisions: list
    levels: dict
    sd: float = 0.01
    says: dict = field(default_factory=dict)
    unbuildable: dict = field(default_factory=dict)
    not_fresh: dict = field(default_factory=dict)
    sides: dict = field(default_factory=dict)  # of a merge: label -> its side's revisions
    files: dict = field(default_factory=dict)  # label -> what the revision changes; one Python file otherwise
    structures: dict = field(default_factory=dict)  # label -> what compiling produces, where that is known
    eager: dict = field(default_factory=dict)  # label -> milliseconds of eager beside it; 3 otherwise
    metric: str = "eager"
    built: list = field(default_factory=list)
    measured: list = field(default_factory=list)
    screened: list = field(default_factory=list)
    notes: list = field(default_factory=list)

    @classmethod
    def step(cls, count, at, by=1.1, **more):
        all_ = revisions(count)
        return cls(
            all_, {commit.label: by if number >= at else 1.0 for number, commit in enumerate(all_)}, **more
        )

    # Of a source.
    def touched(self, listed):
        return [(), *(self.files.get(commit.label, ("pkg/code.py",)) for commit in listed[1:])]

    # Of a builder.
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def costs(self, listed, touched):
        return [20.0] * len(listed)

    def build(self, revision, stop=None, fresh=False, again=False):
        refused = {**self.unbuildable, **(self.not_fresh if fresh else {})}
        if revision.label in refused:
            raise Unbuildable(refused[revision.label])
        self.built.append((revision.label, fresh))
        key = f"key-{revision.label}{'-fresh' if fresh else ''}"
        return BuiltEnvironment(revision, Path("python"), (), {}, key, Path(), Path("log"), 2.0, False)

    # Of a workbench.
    def open(self, stage):
        return self

    def measure(self, built, log, fresh):
        label = built.revision.label
        count = self.measured.count((label, fresh))
        self.measured.append((label, fresh))
        answers = self.says.get(label)
        if isinstance(answers, list):
            answers = answers[min(count, len(answers) - 1)]
        structure = self.structures.get(label)
        record = {"structure": structure} if structure else {}
        if answers:
            return Reading(answers, message="because" if answers != "pass" else ""), record
        value = self.levels[label] * (1 + self.sd * noise(label, fresh, count))
        others = {"eager_ms": self.eager.get(label, 3.0) * (1 + self.sd * noise("e", label, fresh, count))}
        return Reading("pass", value, others), record

    def screen(self, built, log):
        self.screened.append(built.revision.label)
        return self.structures.get(built.revision.label)

    def descend(self, bisection, step, builder):
        stage, place = step.stage, step.outcome.first
        side = self.sides.get(stage.revisions[place].label)
        if not side or not step.way.startswith("merge"):
            raise DeadEnd("nothing there", again=step.way == "pin")
        origin = {"stage": stage.number, "place": place, "way": step.way}
        return self.stage(len(bisection.stages), side, origin)

    def stop(self):
        pass

    def stage(self, number=0, listed=None, origin=None, **wanted):
        metric = METRICS.get(self.metric) or OF_COMMAND[self.metric]
        listed = listed or self.revisions
        request = BisectionRequest("good", "bad", "git", **wanted)
        question = question_of(self, self, listed, metric, request, measure_cost_s=30.0)
        return events.stage(number, "git", listed, question, origin)

    def begun(self, **more):
        return {
            "event": events.BEGUN,
            "schema": 1,
            "name": "2026-11-21T00-00-00Z_here",
            "metric": self.metric,
            "command": ["./measure.sh"] if self.metric in OF_COMMAND else None,
            "case": None
            if self.metric in OF_COMMAND
            else {
                "suite": "timm",
                "model": "resnet18",
                "backend": "inductor",
                "dtype": "float32",
                "device": "cpu",
            },
            "harness": "h",
            "host": "here",
            "host_class": "Some CPU x 8",
            "line": ["perfdash", "bisect", "--good", "0", "--bad", "100"],
            **more,
        }


def begin(script, folder, jobs=1, **more):
    """A journal with its first two events, closed."""
    folder.mkdir(parents=True, exist_ok=True)
    with Journal(folder) as journal:
        bisection = Bisection([])
        for event in (script.begun(**more), script.stage(jobs=jobs)):
            bisection.apply(journal.append(event))
    return folder


def go_on(script, folder, tell=lambda line: None, **more):
    """To the end; the course as it then is."""
    with Journal(folder) as journal:
        bisection = Bisection(journal.events())
        with Engine(bisection, journal, script, tell, **more) as engine:
            engine.run()
    return bisection


def bisected(script, folder, **more):
    return go_on(script, begin(script, folder, **more))
