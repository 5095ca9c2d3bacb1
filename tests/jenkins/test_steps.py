"""The harness itself: steps do what Jenkins' do, so that what the pipelines' tests see means something."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jenkins.controller import Built, Controller

pytestmark = pytest.mark.slow
PIPELINE = """
pipeline {
    agent none
    parameters { string(name: 'WORD', defaultValue: 'plain') }
    environment { FIRST = 'one'; SECOND = "${FIRST}-${params.WORD}"; HOME = '' }
    stages {
        stage('Files') {
            agent { label 'left' }
            steps {
                sh 'mkdir -p a/b && echo x > a/b/c.txt && echo y > a/d.txt && echo "$SECOND $WORD [$HOME]"'
                stash name: 'all', includes: 'a/**/*.txt', excludes: 'a/d.txt'
                archiveArtifacts artifacts: 'a/*.txt'
                catchError(stageResult: 'UNSTABLE', buildResult: 'SUCCESS') {
                    archiveArtifacts artifacts: 'none/**'
                }
                archiveArtifacts artifacts: 'none/**', allowEmptyArchive: true
                catchError(buildResult: 'SUCCESS') { stash name: 'nothing', includes: 'none/**' }
                catchError(buildResult: 'SUCCESS') { unstash 'never' }
            }
        }
        stage('Elsewhere') {
            agent { label 'right' }
            steps {
                sh 'test ! -e a'
                unstash 'all'
                sh 'test -e a/b/c.txt && test ! -e a/d.txt'
                dir('a') { sh 'test -e b/c.txt' }
                retry(3) { sh 'echo try >> tries && test "$(wc -l < tries)" = 3' }
                script {
                    if (sh(script: 'exit 4', returnStatus: true) != 4) { error('code') }
                    String text = sh(script: 'echo out; echo err >&2', returnStdout: true)
                    if (text.trim() != 'out') { error('text') }
                    env.LATER = 'kept'
                }
                withCredentials([string(credentialsId: 'token', variable: 'TOKEN')]) { sh 'echo "<$TOKEN>"' }
                sh 'echo "outside:$TOKEN later:$LATER"'
            }
        }
        stage('Limits') {
            agent { label 'left' }
            steps {
                catchError(buildResult: 'SUCCESS', message: 'too long') {
                    timeout(time: 1, unit: 'SECONDS') { sh 'sleep 50 & echo $! > pid; wait' }
                }
                sh 'sleep 0.3; if grep -s ^State "/proc/$(cat pid)/status" | grep -vq Z; then exit 1; fi'
            }
        }
        stage('Skipped') {
            when { expression { currentBuild.currentResult == 'SUCCESS' } }
            agent { label 'left' }
            steps { error 'not to be run' }
        }
        stage('Both') {
            matrix {
                axes { axis { name 'SIDE'; values 'left', 'right', 'neither' } }
                excludes { exclude { axis { name 'SIDE'; values 'neither' } } }
                agent { label "${SIDE}" }
                stages {
                    stage('One') {
                        steps {
                            lock('the one thing') {
                                sh 'mkdir "$SHARED/held" && sleep 0.5 && rmdir "$SHARED/held"'
                            }
                            sh 'test "$SIDE" = left'
                        }
                        post { failure { echo "failed on ${SIDE}" } }
                    }
                }
            }
        }
        stage('Never') { agent any; steps { echo 'no' } }
    }
    post {
        always { echo 'always' }
        success { echo 'success' }
        aborted { echo 'aborted' }
        cleanup { sh 'true' }
    }
}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("steps")
    (folder / "Jenkinsfile").write_text(PIPELINE)
    (folder / "scm").mkdir()
    (folder / "shared").mkdir()
    job = Controller(
        folder / "jenkins", folder / "Jenkinsfile", folder / "scm", {"l": ["left"], "r": ["right", "x"]}
    )
    job.credentials["token"] = {"secret": "s3cr3t"}
    job.env["SHARED"] = str(folder / "shared")
    return job.build(params={"WORD": "said"})


def test_variables(built: Built) -> None:
    assert "    one-said said []" in built.log
    assert "outside: later:kept" in built.log
    assert "    <****>" in built.log
    assert "s3cr3t" not in built.log


def test_files(built: Built) -> None:
    assert built.artifacts == ["a/d.txt"]
    assert built.stages["Files"] == "UNSTABLE"
    for message in ('file pattern "none/**"', "stash nothing: no files", "no such saved stash 'never'"):
        assert message in built.log
    assert built.stages["Elsewhere"] == "SUCCESS", built.log


def test_limits_and_results(built: Built) -> None:
    # catchError says SUCCESS, but of what a time limit ended the result is ABORTED, as in Jenkins.
    assert "too long" in built.log
    assert built.stages["Limits"] == "ABORTED"
    assert built.result == "ABORTED"
    assert built.stages["Skipped"] == "NOT_BUILT"


def test_cells(built: Built) -> None:
    cells = {name: built.stages[name] for name in built.stages if name.startswith("Both / ")}
    assert cells == {
        "Both / SIDE=left": "SUCCESS",
        "Both / SIDE=left / One": "SUCCESS",
        "Both / SIDE=right": "FAILURE",
        "Both / SIDE=right / One": "FAILURE",
    }
    assert [command["code"] for command in built.ran("mkdir")][1:] == [0, 0]  # the lock kept them apart
    assert built.stages["Never"] == "SKIPPED"


def test_what_follows(built: Built) -> None:
    lines = built.log.splitlines()
    assert "always" in lines
    assert "success" not in lines
    assert "aborted" in lines
    assert "'agent none' was specified" in built.log  # sh in post, without an agent


def test_a_label_that_no_agent_has(tmp_path: Path) -> None:
    (tmp_path / "Jenkinsfile").write_text(
        "pipeline { agent { label 'gone' }\n stages { stage('A') { steps { echo 'a' } } } }"
    )
    job = Controller(tmp_path / "j", tmp_path / "Jenkinsfile", tmp_path, {"l": ["left"]})
    assert job.build().result == "FAILURE"
