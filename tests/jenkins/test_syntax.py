"""The three pipelines against the declarative syntax, and that the harness sees what is against it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jenkins.controller import ROOT, check

PIPELINES = ("Jenkinsfile", "ci/Jenkinsfile.bisect", "ci/Jenkinsfile.compare")
GOOD = """
void twice(String command) { sh command; sh command }
pipeline {
    agent none
    options { timeout(time: 1, unit: 'HOURS') }
    stages {
        stage('A') { agent { label 'x' }; steps { twice('true'); echo 'done' } }
        stage('B') {
            matrix {
                axes { axis { name 'X'; values 'a', 'b' } }
                excludes { exclude { axis { name 'X'; values 'b' } } }
                agent any
                stages { stage('C') { steps { sh 'true' } } }
            }
        }
    }
    post { always { echo 'end' } }
}
"""
# What is put in place of what, and what is then said.
WRONG = [
    ("    agent none\n", "", "line 3: pipeline needs the section 'agent'"),
    ("agent none", "agent nobody", "agent none, any or a block"),
    ("agent none", "agent none\n    steps { sh 'true' }", "pipeline has no section 'steps'"),
    ("agent { label 'x' }", "agent { labels 'x' }", "no kind of agent 'labels'"),
    ("timeout(time: 1, unit: 'HOURS')", "timeOut(1)", "no option 'timeOut' here"),
    ("timeout(time: 1, unit: 'HOURS')", "timeout(hours: 1)", "timeout: no parameter 'hours'"),
    ("options {", "environment { name('b') }\n    options {", "environment takes NAME"),
    ("options {", "triggers { cron('H 2 * *') }\n    options {", "cron needs five fields"),
    ("options {", "parameters { string(nam: 'A') }\n    options {", "parameter string has no 'nam'"),
    ("sh command;", "shell command;", "no such step: shell"),
    ("echo 'done'", "ehco 'done'", "no such step: ehco"),
    ("echo 'done'", "if (true) { echo 'done' }", "other Groovy belongs into script"),
    ("echo 'done'", "def a = 1", "other Groovy belongs into script"),
    ("echo 'done'", "junit results: 'a.xml'", "junit: no parameter 'results'"),
    ("echo 'done'", "stash includes: 'a'", "stash: needs the parameter 'name'"),
    ("echo 'done'", "timeout(time: 1)", "timeout needs a block"),
    ("echo 'done'", "stage('D') { }", "the step 'stage' cannot be used here"),
    ("steps { twice", "step { twice", "stage has no section 'step'"),
    ("stage('B') {", "stage('A') {", "two stages 'A'"),
    ("stage('B') {", "stage('B') {\n agent any\n", "no agent beside parallel or matrix"),
    ("axes { axis", "axes { axle", "only axis here"),
    ("values 'a', 'b' }", "valuesIn 'a' }", "an axis has a name and values"),
    ("exclude { axis { name 'X'; values 'b' }", "exclude { axis { name 'Y'; values 'b' }", "no axis 'Y'"),
    ("exclude { axis { name 'X'; values 'b' }", "exclude { axis { name 'X'; values 'c' }", "no value 'c'"),
    ("stage('C') { steps", "stage('C') { when { expresion { true } }; steps", "no condition 'expresion'"),
    ("stage('C') { steps { sh 'true' }", "stage('C') { matrix { }", "no parallel or matrix in another"),
    ("post { always", "post { finally", "does not parse"),
    ("post { always", "post { ever", "post has no 'ever'"),
    ("echo 'end' }", "echo 'end' }; always { echo 'again' }", "post has 'always' twice"),
    ("pipeline {", "pipelines {", "one pipeline block"),
]  # fmt: skip


@pytest.mark.parametrize("name", PIPELINES)
def test_the_pipelines_keep_to_the_syntax(name: str, tmp_path: Path) -> None:
    assert check(tmp_path, ROOT / name) == [[]]


def test_what_is_against_the_syntax_is_reported(tmp_path: Path) -> None:
    texts = [GOOD]
    for old, new, _ in WRONG:
        assert old in GOOD, old
        texts.append(GOOD.replace(old, new, 1))
    files = []
    for number, text in enumerate(texts):
        files.append(tmp_path / f"{number}.groovy")
        files[-1].write_text(text)
    good, *bad = check(tmp_path, *files)
    assert good == []
    unseen = [
        (old, new, errors)
        for (old, new, message), errors in zip(WRONG, bad, strict=True)
        if not any(message in error for error in errors)
    ]
    assert unseen == []
