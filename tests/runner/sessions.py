"""A session with an executor that is played back, and what its slots answer."""

from dataclasses import replace

from perfdash.records import Case, RunInfo
from perfdash.runner.messages import ProcessOutcome
from perfdash.runner.run_journal import RunJournal
from perfdash.runner.session import Policy, Session
from tests.runner.planned import Played, case

FAILED = {"event": "failed", "phase": "compile", "type": "OSError", "message": "No space left on device"}
INFRA = ProcessOutcome([{**FAILED, "status": "infra_error"}], status=0)


class Lines(list):
    def say(self, text):
        self.append(text)

    def activity(self, text): ...
    def case_started(self, number, total, case, left_s): ...
    def phase(self, case, name): ...
    def case_done(self, number, total, result, left_s): ...


def session(folder, planned, executor=None, done=(), journal=None, costs=None, executed=None, **policy):
    """A session of these cases without pauses; its journal is made in the folder."""
    journal = journal or RunJournal.create(folder)
    total = len(planned) + len(done)
    info = RunInfo(journal.folder.name, "t", "h", [], {}, {}, total, "0", sessions=[{}])
    return Session(
        planned,
        costs or [1.0] * len(planned),
        Policy(retry_pause_s=0.0, **policy),
        executor or Played(),
        journal,
        info,
        Lines(),
        {},
        done,
        executed=executed or {},
    )


def configured(model, *names):
    """A case of a model in each configuration."""
    return [replace(case(model), case=Case("s", model, configuration=name)) for name in names]
