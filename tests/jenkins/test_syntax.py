"""The three pipelines against the declarative syntax, and that the parser sees what is against it."""

from __future__ import annotations

import pytest

from tests.jenkins.pipelines import PIPELINES, ROOT, groovy, run

pytestmark = pytest.mark.slow
GOOD = """
void twice(String command) { sh command; sh command }
pipeline {
    agent none
    parameters { string(name: 'P', defaultValue: '', description: 'p') }
    options { timeout(time: 1, unit: 'HOURS') }
    triggers { cron('H 2 * * *') }
    environment { A = 'a' }
    stages {
        stage('A') { agent { label 'x' }; steps { twice('true'); echo 'done' } }
        stage('B') {
            agent { label 'x' }
            when { expression { true } }
            stages { stage('C') { steps { sh 'true' } } }
        }
    }
    post { always { echo 'end' } }
}
"""
# What is put in place of what, and what is then said.
WRONG = [
    ("    agent none\n", "", "pipeline needs 'agent'"),
    ("agent none", "agent nobody", "agent none, or a block"),
    ("agent none", "agent none\n    steps { sh 'true' }", "pipeline has no 'steps'"),
    ("agent { label 'x' }", "agent { labels 'x' }", "agent has no 'labels'"),
    ("timeout(time: 1, unit: 'HOURS')", "timeOut(1)", "options has no 'timeOut'"),
    ("timeout(time: 1, unit: 'HOURS')", "timeout(hours: 1)", "timeout: no parameter 'hours'"),
    ("A = 'a'", "name('b')", "environment takes NAME"),
    ("H 2 * * *", "H 2 * *", "cron needs five fields"),
    ("string(name: 'P'", "string(nam: 'P'", "string: no parameter 'nam'"),
    ("sh command;", "shell command;", "no such step: shell"),
    ("echo 'done'", "ehco 'done'", "no such step: ehco"),
    ("echo 'done'", "if (true) { echo 'done' }", "other Groovy belongs into script"),
    ("echo 'done'", "def a = 1", "other Groovy belongs into script"),
    ("echo 'done'", "junit results: 'a.xml'", "junit: no parameter 'results'"),
    ("echo 'done'", "stash includes: 'a'", "stash: needs the parameter 'name'"),
    ("echo 'done'", "timeout(time: 1)", "timeout: a block too many, or none"),
    ("echo 'done'", "stage('D') { }", "the step 'stage' cannot be used here"),
    ("steps { twice", "step { twice", "stage has no 'step'"),
    ("stage('B') {", "stage('A') {", "two stages 'A'"),
    ("steps { sh 'true' }", "environment { B = 'b' }", "stage 'C' needs steps or stages"),
    ("expression {", "expresion {", "when has no 'expresion'"),
    ("post { always", "post { finally", "does not parse"),
    ("post { always", "post { ever", "post has no 'ever'"),
    ("echo 'end' }", "echo 'end' }; always { echo 'again' }", "post has 'always' twice"),
    ("pipeline {", "pipelines {", "one pipeline block"),
]  # fmt: skip


def test_the_pipelines_keep_to_the_syntax_and_what_does_not_is_seen() -> None:
    texts = [(ROOT / name).read_text() for name in PIPELINES]
    for old, new, _ in WRONG:
        assert old in GOOD, old
        texts.append(GOOD.replace(old, new, 1))
    *pipelines, good = groovy([{"check": True, "text": text} for text in (*texts[: len(PIPELINES)], GOOD)])
    assert pipelines == [[]] * len(PIPELINES)
    assert good == []
    bad = groovy([{"check": True, "text": text} for text in texts[len(PIPELINES) :]])
    unseen = [
        (old, new, errors)
        for (old, new, message), errors in zip(WRONG, bad, strict=True)
        if not any(message in error for error in errors)
    ]
    assert unseen == []


STEPS = """
pipeline {
    agent none
    parameters { string(name: 'WORD', defaultValue: 'plain', description: 'w') }
    options { timeout(time: 1, unit: 'HOURS') }
    environment { FIRST = 'one'; SECOND = "${FIRST}-${params.WORD}"; EMPTY = '' }
    stages {
        stage('A') {
            agent { label 'left' }
            steps {
                withCredentials([string(credentialsId: 'id', variable: 'TOKEN')]) { sh 'in' }
                sh 'out'
                catchError(buildResult: 'UNSTABLE', stageResult: 'FAILURE') { sh 'fails' }
                catchError(buildResult: 'UNSTABLE', stageResult: 'FAILURE') { unstash 'never' }
                script { env.LATER = 'kept' }
                sh 'later'
            }
        }
        stage('B') { steps { sh 'nowhere' } }
        stage('C') { steps { echo 'not run' } }
    }
    post { always { echo 'always' }; aborted { echo 'aborted' }; failure { echo 'failure' } }
}
"""


def test_the_harness_does_as_jenkins_does() -> None:
    """Variables, credentials, results, a step without an agent, what is skipped, post."""
    scenario = {"text": STEPS, "params": {"WORD": "said"}, "credentials": {"id": "s3cr3t"},
                "answers": [{"script": "fails", "code": 1}]}  # fmt: skip
    built = run({"steps": scenario})["steps"]
    first, after, _, later = built.ran()
    assert (first["secrets"], after["secrets"]) == (["TOKEN"], [])
    assert first["env"]["SECOND"] == "one-said"
    assert "EMPTY" not in first["env"]
    assert (after["env"].get("LATER"), later["env"]["LATER"]) == (None, "kept")
    assert built.stages == {"A": "FAILURE", "B": "FAILURE", "C": "SKIPPED"}
    assert "no such saved stash 'never'" in built.log
    assert "sh needs an agent" in built.log
    assert built.result == "FAILURE"
    assert built.log.splitlines()[-2:] == ["always", "failure"]
