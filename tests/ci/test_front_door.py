"""The parameters of ci/nightly.sh, its dry run, its failures, and the machine that it starts and stops."""

from __future__ import annotations

import json
import shutil
import signal
import time

import pytest

from tests.ci.stage import Stage

pytestmark = pytest.mark.slow


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path)


def test_a_wrong_option_ends_the_night_before_it_begins(stage):
    """One of each kind; tests/ci/test_parameters.py has them all."""
    for words, more, why in [
        (["--cell-minuts", "30"], {}, "did you mean --cell-minutes?"),
        (["--cell-minutes", "abc"], {}, "CELL_MINUTES=abc: give a number from 1"),
        ([], {"RUN_ARGUMENTS": "--bakend eager"}, "did you mean --backend?"),
        (["--suites", "tim"], {}, "did you mean timm?"),
        (["--suites", "mine.toml"], {}, "SUITES: there is no file"),
        (["--repo"], {}, "--repo needs a value"),
        (["--resume", "nothing"], {}, "no nightly there"),
        (["--from", "lunch"], {}, "there is no stage lunch; there are: setup torch"),
    ]:
        done = stage.night(*words, **more)
        assert done.code == 2, done.out
        assert why in done.out
        assert not stage.calls()
        assert not (stage.home / "runs").exists()


def test_options_of_a_run_pass_and_parameters_are_kept(stage):
    done = stage.night(
        "--cell-minutes", "30", "--wait", "2h", "--batch-size", "1,8", "--retries=3", "--strict"
    )
    assert done.code == 0, done.out
    (run,) = stage.calls("run")
    assert run.endswith("--wait 2h --batch-size 1,8 --retries=3 --strict")
    assert "cell-minutes" not in run
    assert "CELL_MINUTES=30" in done.text("settings")


def test_a_file_in_an_option_of_a_run_is_meant_where_the_command_is_typed(stage):
    home = stage.home
    (home / "runs" / "earlier").mkdir(parents=True)
    (home / "my weights").touch()
    words = ["--model", "net.py:make", "--torchbench=bench", "--weights", "random", "--env", "A=b"]
    done = stage.night(*words, "--backend", "inductor,mine.py", "--backend=my back end.py")
    assert done.code == 0, done.out
    (run,) = stage.calls("run")
    assert run.endswith(
        f" --model {home}/net.py:make --torchbench={home}/bench --weights random --env A=b"
        f" --backend inductor,{home}/mine.py --backend={home}/my back end.py"
    )
    done = stage.night("--weights", "my weights", "--costs=runs/earlier", "--costs", "last")
    assert done.code == 0, done.out
    (run,) = stage.calls("run")
    assert run.endswith(f" --weights {home}/my weights --costs={home}/runs/earlier --costs last")


def test_values_of_a_repeated_option_add_up(stage):
    """As in perfdash run."""
    done = stage.night(
        "--suite", "timm", "--suites=huggingface", "--dtype", "float32", "--dtype", "bfloat16",
        "--models", "resnet*", "--models", "vit*", "--configuration", "default", "--configuration=dynamic",
        "--threads", "1", "--threads", "2", SUITES="torchbench",
    )  # fmt: skip
    assert done.code == 0, done.out
    calls = stage.calls("run")
    assert ["--threads 1" in calls[0], "--threads 2" in calls[1]] == [True, True]
    for call in calls:
        assert "--suite timm,huggingface --dtype float32,bfloat16 --configuration default,dynamic " in call
        assert "--models resnet*,vit* " in call
    assert "THREADS=1\\,2\n" in done.text("settings")


def test_a_dry_run_in_a_fresh_clone_installs_nothing(stage):
    shutil.rmtree(stage.venv)
    done = stage.night("--dry-run", "--jobs", "auto")
    assert done.code == 0, done.out
    assert "cases and hours are not known yet" in done.out
    assert "Run ci/setup.sh" in done.out
    assert "Torch: installed" in done.out
    assert not stage.venv.exists()
    assert not (stage.home / "runs").exists()
    assert stage.night("--dry-run", "--cell-minuts", "3").code == 2


def test_a_short_night_is_planned_in_minutes(stage):
    plan = {
        "cases": [{"case": {"suite": "s", "model": "m", "dtype": "float32"}, "skip_reason": None,
                   "expected_by": "suite"}],
        "shards": [{"shard": "1/1", "cases": 1, "hours": 0.2}], "hours": {"work": 0.2},
    }  # fmt: skip
    (stage.venv / "bin" / "perfdash").write_text(f"#!/bin/sh\necho '{json.dumps(plan)}'\n")
    done = stage.night("--dry-run")
    assert "About 12 minutes of work; on 1 machine the last is done after about 12 minutes" in done.out
    assert "0.2" not in done.out


def test_a_failed_stage_shows_its_last_lines(stage):
    (stage.venv / "bin" / "perfdash").write_text(
        '#!/bin/sh\n[ "$1" = site ] || exit 0\nfor i in $(seq 30); do echo "line $i of the log"; done\n'
        "echo postgresql://me:s3cretword@host/p\nexit 3\n"
    )
    done = stage.night("--site-dir", "site")
    end = done.out.split("Last lines of publish ")[1]
    assert end.startswith(f"({done.folder}/publish.log has all):\n")
    assert "    line 30 of the log" in end
    assert "line 13 of the log" in end
    assert "line 9 of the log" not in end
    assert "s3cretword" not in end


def around(stage, start="started", stop="stopped"):
    """Commands that write what they did, and the secrets that they saw."""
    seen = stage.home / "seen"
    write = f'echo "{{}} $(env | grep -c [s]3cret)" >>{seen}'
    return {"START_COMMAND": write.format(start), "STOP_COMMAND": write.format(stop)}, seen


def test_the_machine_is_started_and_stopped_around_the_night(stage):
    more, seen = around(stage)
    done = stage.night(**more, GITHUB_TOKEN="s3cret", PERFDASH_DB="postgresql://me:s3cret@host/p",
                       CLOUD_API_KEY="s3cret")  # fmt: skip
    assert done.code == 0, done.out
    assert seen.read_text() == "started 0\nstopped 0\n"
    order = [line[4:] for line in done.out.splitlines() if line.startswith("--- ")]
    assert order.index("torch") < order.index("start") < order.index("host")
    assert order.index("bisect") < order.index("stop") < order.index("publish")


def test_the_machine_is_stopped_after_a_night_that_failed(stage):
    more, seen = around(stage)
    stage.fails("run")
    assert stage.night(**more).code == 3
    assert seen.read_text() == "started 0\nstopped 0\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_machine_is_stopped_after_an_interrupted_night(stage, number):
    more, seen = around(stage)
    (stage.home / "hang").touch()
    process = stage.start(**more)
    while not (stage.home / "hangs").exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(number)
    done = stage.ended(process)
    assert done.code == 130, done.out
    assert seen.read_text() == "started 0\nstopped 0\n"


def test_the_machine_is_stopped_after_a_killed_night_once_its_stage_has_ended(stage):
    more, seen = around(stage)
    (stage.home / "hang").touch()
    process = stage.start(**more, GITHUB_TOKEN="s3cret")
    while not (stage.home / "hangs").exists() and process.poll() is None:
        time.sleep(0.02)
    process.kill()
    process.wait()
    process.stdout.close()
    time.sleep(1.5)
    assert seen.read_text() == "started 0\n"  # it is measured on still
    (stage.home / "hang").unlink()
    (night,) = (stage.home / "runs" / "nightly").glob("2*")
    for _ in range(3000):
        if not (night / "machine").exists():
            break
        time.sleep(0.1)
    assert seen.read_text() == "started 0\nstopped 0\n"
    assert "The nightly was killed: its machine is stopped now" in (night / "stop.log").read_text()
    again = stage.night("--resume", "last", **more)
    assert again.code == 0, again.out
    time.sleep(1.5)
    assert seen.read_text() == "started 0\nstopped 0\nstarted 0\nstopped 0\n"  # by one guard less


def test_without_the_machine_nothing_is_measured_and_it_is_stopped(stage):
    more, seen = around(stage)
    done = stage.night(**{**more, "START_COMMAND": "echo no quota; exit 7"})
    assert done.code == 3
    assert "start failed with exit code 3: START_COMMAND failed with exit code 7" in done.out
    assert "no quota" in done.out.split("Last lines of start")[1]
    assert "measure: left out, the machine was not started" in done.out
    assert not stage.calls("run")
    assert seen.read_text() == "stopped 0\n"


def test_a_machine_that_nobody_would_stop_is_not_started(stage):
    """The disk became read-only while torch was built: what says that it runs cannot be written."""
    perfdash = stage.venv / "bin" / "perfdash"
    first = "option = lambda flag: words[words.index(flag) + 1] if flag in words else None\n"
    sabotage = """if words[:2] == ["nightly", "begin"]:
    os.symlink("/nowhere/machine", option("--out") + "/nightly/" + option("--night") + "/machine")
"""
    assert first in perfdash.read_text()
    perfdash.write_text(perfdash.read_text().replace(first, first + sabotage, 1))
    more, seen = around(stage)
    done = stage.night(**more, EVERY="24h", WEBHOOK="yes", PERFDASH_WEBHOOK="https://hidden")
    assert done.code == 3, done.out
    assert "measure: left out, the machine was not started" in done.out
    assert f"notify --broken start failed: {done.folder}/machine cannot be written" in "\n".join(
        stage.calls()
    )
    assert not seen.exists()


def test_a_command_that_does_not_end_is_ended(stage):
    done = stage.night(START_COMMAND="sleep 1000; true", START_MINUTES="0.005")
    assert done.code == 3
    assert "START_COMMAND did not end within START_MINUTES=0.005" in done.out


def test_a_stop_that_failed_is_a_failed_stage_and_is_tried_again(stage):
    more, seen = around(stage)
    done = stage.night(**{**more, "STOP_COMMAND": "exit 5"})
    assert done.code == 3
    assert "STOP_COMMAND failed with exit code 5" in done.out
    assert done.out.count("stop failed with exit code 3: The machine may still be running") == 1
    assert done.stages()["publish"] == "0"
    again = stage.night("--resume", "last", "--stop-command", more["STOP_COMMAND"])
    assert again.code == 0, again.out
    assert seen.read_text() == "started 0\nstopped 0\n"
