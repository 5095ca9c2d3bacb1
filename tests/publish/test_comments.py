"""Comments against a GitHub that loses replies, limits, moves and is written to by others."""

import functools
import logging
import threading

import pytest
from prettytable import PrettyTable

from perfdash.errors import MachineError, UsageError
from perfdash.publish.comments import KIND, bodies, earliest, find_issue, run_fields, upsert
from perfdash.publish.github import checked_address, checked_token
from perfdash.publish.http_failures import Refused
from perfdash.publish.marker import marker
from perfdash.report.comment_splitting import LIMIT, size
from tests.history.made import run as made_run
from tests.publish.server import ALICE, TOKEN

RUN = "2026-11-21T01-00-00Z_farm"
WRITE = r"(POST|PATCH|DELETE) /repos/team/perf/issues"


@functools.cache
def texts(rows=900, run=RUN):
    """A night of several parts."""
    table = PrettyTable(["model", "speedup"])
    for number in range(rows):
        table.add_row([f"model_with_a_long_name_{number}" + "x" * 100, "1.000x"])
    return bodies(f"# Night\n\n```\n{table}\n```\n", KIND, run=run)


def post(talk, wanted=None, run=RUN):
    return upsert(talk, find_issue(talk, "team/perf", 3), wanted or texts(run=run), KIND, run=run)


def check(hub, wanted=None):
    assert hub.of() == (wanted or texts())


def test_new_comments_of_several_parts(hub, talk):
    done = post(talk)
    check(hub)
    assert len(hub.of()) == 3
    assert (done.created, done.edited, done.removed) == (3, 0, 0)
    assert done.urls[0] == hub.comments[0]["html_url"]
    for number, body in enumerate(hub.of(), start=1):
        assert size(body) <= LIMIT
        first, second = body.split("\n")[:2]
        assert first == marker(KIND, run=RUN, part=number)
        assert second == f"*Part {number} of 3*"
    assert all(headers["User-Agent"].startswith("perfdash/") for headers in hub.headers)


def test_posted_again_nothing_is_written(hub, talk, another):
    post(talk)
    before = len(hub.writes())
    done = post(another())
    assert len(hub.writes()) == before
    assert (done.created, done.edited, done.removed) == (0, 0, 0)
    check(hub)


def test_edited_where_it_differs_and_surplus_removed(hub, talk):
    post(talk)
    hub.comments[1]["body"] += "\nby hand"
    done = post(talk)
    assert (done.created, done.edited, done.removed) == (0, 1, 0)
    check(hub)
    short = texts(rows=3)
    done = post(talk, short)
    assert (done.edited, done.removed) == (1, 2)
    check(hub, short)
    post(talk)
    check(hub)


def test_another_run_has_comments_of_its_own(hub, talk):
    post(talk)
    post(talk, run="another")
    assert hub.of() == [*texts(), *texts(run="another")]


def test_parts_that_a_person_removed_come_again_in_order(hub, talk):
    post(talk)
    del hub.comments[0]
    post(talk)
    check(hub)


def test_quotes_and_copies_by_others_are_left_alone(hub, talk, messages):
    quoted = "\n".join(f"> {line}" for line in texts()[0].split("\n")[:3])
    copied = texts()[0]
    hub.add_comment(quoted, user=ALICE)
    hub.add_comment(copied, user=ALICE)
    hub.add_comment(f"I quote:\n{copied}")
    post(talk)
    assert hub.of() == [quoted, copied, f"I quote:\n{copied}", *texts()]
    assert messages == ["1 such comments are by another account: they are left as they are"]


def test_a_comment_of_a_removed_account_does_no_harm(hub, talk):
    hub.add_comment(texts()[0])["user"] = None
    hub.add_comment("x")["body"] = None
    post(talk)
    assert hub.of()[2:] == texts()


def test_an_app_knows_its_comments_by_its_kind(hub, talk, another):
    hub.is_app = True
    hub.add_comment(texts()[0], user=ALICE)
    post(talk)
    post(another())
    assert hub.of()[1:] == texts()


@pytest.mark.parametrize("tells", [True, False])
def test_another_apps_comments_are_left_alone(hub, talk, another, messages, tells):
    hub.is_app, hub.tells_login = True, tells
    theirs = texts()[0] + "theirs"
    hub.add_comment(theirs, user={"id": 99, "login": "jenkins[bot]", "type": "Bot"})
    post(talk)
    post(another())
    assert hub.of() == [theirs, *texts()]
    assert ("1 such comments are by another account: they are left as they are" in messages) == tells


def test_an_app_that_may_not_edit_is_reported(hub, talk):
    hub.is_app = True
    hub.add_comment(texts()[0] + "theirs", user={"id": 99, "login": "jenkins[bot]", "type": "Bot"})
    hub.locked.add(3)
    with pytest.raises(Refused, match="locked"):
        post(talk)


def test_a_run_of_the_same_name_at_another_time(hub, talk):
    other = [upserted(hub, talk, day) for day in ("2026-11-20", "2026-11-21")]
    assert hub.of() == other
    upserted(hub, talk, "2026-11-20")
    assert hub.of() == other


def test_a_comment_from_before_the_time_was_in_its_marker(hub, talk):
    hub.add_comment(bodies("old", KIND, run="inference")[0])
    assert [upserted(hub, talk, "2026-11-20")] == hub.of()


def test_shards_that_are_merged_again_have_one_set_of_comments(hub, talk):
    """Each merge is a run folder of another name; shard c was measured later."""

    def merged(name, *shards):
        fields = run_fields(made_run(name=name, imported={"merged_from": list(shards)}).run)
        (body,) = bodies(f"night {name}", KIND, **fields)
        upsert(talk, find_issue(talk, "team/perf", 3), [body], KIND, **fields)
        return body

    merged("incomplete", "b", "a")
    again = merged("whole", "a", "b", "c")
    assert hub.of() == [again]
    other = merged("next night", "d", "e", "i")
    assert hub.of() == [again, other]
    assert hub.of() == [merged("whole", "a", "b", "c"), other]
    first_shard_again = merged("third", "b", "f")
    assert hub.of() == [first_shard_again, other]
    many = [f"shard {number}" for number in range(100)]
    merged("many", *many)
    last = merged("many again", *many[50:], *(f"{name} again" for name in many[:50]))
    assert hub.of() == [first_shard_again, other, last]
    with_a_shard_of_the_night_before = merged("two nights", "d", "g", "h")
    assert hub.of() == [first_shard_again, other, last, with_a_shard_of_the_night_before]


def test_merged_runs_with_shards_of_equal_names_have_comments_of_their_own(hub, talk):
    for line in ("main", "feature"):
        imported = {"merged_from": ["a"], "merged_keys": [f"a {line}"]}
        fields = run_fields(made_run(name=line, imported=imported).run)
        upsert(talk, find_issue(talk, "team/perf", 3), bodies(line, KIND, **fields), KIND, **fields)
    assert len(hub.of()) == 2


@pytest.mark.parametrize("old", [{"run": "whole"}, {"run": "before", "shard": "a"}])
def test_a_comment_on_a_merged_run_from_before_its_shards_were_in_the_marker(hub, talk, old):
    hub.add_comment(bodies("old", KIND, **old)[0])
    fields = run_fields(made_run(name="whole", imported={"merged_from": ["a", "b"]}).run)
    (body,) = bodies("new", KIND, **fields)
    upsert(talk, find_issue(talk, "team/perf", 3), [body], KIND, **fields)
    assert hub.of() == [body]


def upserted(hub, talk, started):
    fields = {"run": "inference", "started": started}
    (body,) = bodies(f"night {started}", KIND, **fields)
    upsert(talk, find_issue(talk, "team/perf", 3), [body], KIND, **fields)
    return body


def test_all_pages_are_read(hub, talk):
    for number in range(250):
        hub.add_comment(f"talk {number}", user=ALICE)
    post(talk)
    for number in range(250):
        hub.add_comment(f"more {number}", user=ALICE)
    post(talk)
    assert [comment["body"] for comment in hub.comments if comment["user"] is not ALICE] == texts()


def test_older_comments_are_not_asked_for(hub, talk):
    for _ in range(150):
        hub.add_comment("old", user=ALICE)["updated_at"] = "2020-01-01T00:00:00Z"
    place = find_issue(talk, "team/perf", 3)
    before = len(hub.requests)
    upsert(talk, place, texts(), KIND, earliest("2026-11-21T01:00:00Z", 2e9), run=RUN)
    request = "GET /repos/team/perf/issues/3/comments"
    assert hub.requests[before:].count(request) == 4  # all of them once, in two pages, before it makes any
    before = len(hub.requests)
    upsert(talk, place, texts(), KIND, earliest("2026-11-21T01:00:00Z", 2e9), run=RUN)
    assert hub.requests[before:] == [request]


def test_a_run_whose_clock_was_days_ahead(hub, talk):
    place = find_issue(talk, "team/perf", 3)
    upsert(talk, place, texts(), KIND, earliest("2026-11-24T01:00:00Z", 1795305600.0), run=RUN)
    hub.comments[1]["updated_at"] = "2026-11-25T00:00:00Z"  # one was edited later
    for now in (1795478400.0, 2e9):  # two days later; long after
        upsert(talk, place, texts(), KIND, earliest("2026-11-24T01:00:00Z", now), run=RUN)
        check(hub)


def test_since_when_comments_of_a_run_can_be_there():
    assert earliest("2026-11-21T01:00:00Z", 2e9) == "2026-11-20T01:00:00Z"
    assert earliest("2026-11-21T01:00:00", 2e9) == "2026-11-20T01:00:00Z"
    assert earliest("2099-01-01T00:00:00Z", 1_800_000_000.0) == "2027-01-14T08:00:00Z"  # a wrong clock
    for started in ("soon", "", "0001-01-01T00:00:00Z"):
        assert earliest(started, 2e9) is None


FAULTS = {
    "reply lost": ("lose", {}),
    "connection lost before": ("drop", {}),
    "502 after it acted": ("broken", {}),
    "502 before": (502, {}),
    "503 with retry-after": (503, {"headers": {"Retry-After": "5"}}),
    "secondary limit": (
        403,
        {"message": "You have exceeded a secondary rate limit.", "headers": {"Retry-After": "7"}},
    ),
    "secondary limit without a time": (403, {"message": "You have exceeded a secondary rate limit"}),
    "429": (429, {"message": "slow down", "headers": {"Retry-After": "3"}}),
    "primary limit": (
        403,
        {
            "message": "API rate limit exceeded for user 7.",
            "headers": {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1800000100"},
        },
    ),
}


@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("method", ["GET", "POST", "PATCH", "DELETE"])
@pytest.mark.parametrize("fault", FAULTS)
def test_one_set_of_comments_whatever_fails(hub, talk, another, clock, messages, fault, method, times):
    kind, more = FAULTS[fault]
    for _ in range({"GET": 1, "POST": 0, "PATCH": 3, "DELETE": 6}[method]):
        hub.add_comment(texts()[1] + "old")
    hub.fault(f"{method} .*comments", kind, times=times, **more)
    post(talk)
    check(hub)
    assert not hub.faults
    if method == "POST" and kind in ("lose", "broken"):  # it acted: nothing was sent twice
        assert len(hub.writes()) == len(texts())
    assert messages  # that it waited, and why
    assert sum(clock.slept) > 0
    post(another())
    check(hub)


def test_waits_as_long_as_it_is_asked_to(hub, talk, clock, messages):
    hub.fault("POST", 403, message="You have exceeded a secondary rate limit", headers={"Retry-After": "77"})
    post(talk)
    assert 77 in clock.slept
    assert f"127.0.0.1:{hub.server.server_address[1]} limits how often one may ask: waiting 77 s" in messages
    hub.fault("GET", 429, headers={"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(clock.time + 50)})
    post(talk)
    assert 51 in clock.slept


def test_writes_keep_a_second_apart(talk, clock):
    post(talk)
    assert clock.slept == [1.0, 1.0]


@pytest.mark.parametrize("after", ["3600", "nan", "inf", "-5", "soon", "Fri, 15 Jan 2027 09:00:00 GMT"])
def test_patience_has_an_end(hub, talk, clock, after):
    hub.fault("GET", 429, times=50, headers={"Retry-After": after})
    with pytest.raises(MachineError, match="waits 15 minutes at most: post later"):
        post(talk)
    assert sum(clock.slept) <= 900
    assert hub.of() == []


@pytest.mark.parametrize("kind", ["lose", "drop", "broken", 500])
def test_it_gives_up_in_the_end(hub, talk, another, kind):
    hub.fault("POST", kind, times=100)
    if kind in ("lose", "broken"):  # each try left one: that is progress
        post(talk)
    else:
        with pytest.raises(MachineError):
            post(talk)
        assert hub.of() == []
        assert 3 <= len(hub.writes()) <= 6
        hub.faults.clear()
        post(another())
    check(hub)


@pytest.mark.slow
def test_a_slow_server_that_acts_after_the_client_gave_up(hub, another):
    hub.fault("POST", "slow")
    talk = another(timeout_s=1)
    seen = []

    def release(line):
        seen.append(line)
        if len([request for request in seen if request.startswith("POST")]) == 2:  # while it is sent again
            hub.released.set()

    hub.before = release
    post(talk)
    hub.faults.clear()
    post(another())
    check(hub)


@pytest.mark.parametrize("fault", [None, "lose"])
def test_a_list_that_lags_behind(hub, talk, fault):
    """A comment whose reply was lost, and which the list does not show yet, is made twice, then once."""
    if fault:
        hub.fault("POST", fault)

    def lag(line):
        if line.startswith("POST"):
            hub.lag = 1

    hub.before = lag
    post(talk)
    check(hub)


def test_a_person_removes_a_comment_while_it_is_edited(hub, talk):
    post(talk)
    hub.comments[1]["body"] += "!"

    def remove(line):
        if line.startswith("PATCH"):
            del hub.comments[1]
            hub.before = lambda _: None

    hub.before = remove
    post(talk)
    check(hub)


def test_two_who_post_at_once_leave_one_set(hub, another, clock):
    barrier = threading.Barrier(2, timeout=120)
    waiting = {"left": 2}

    def meet(line):  # both have listed before either writes
        if line.startswith("POST") and waiting["left"]:
            waiting["left"] -= 1
            barrier.wait()

    hub.before = meet
    failed = []

    def post_comment():
        try:
            post(another())
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=post_comment) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    check(hub)


def test_a_repository_and_an_issue_that_moved(hub, talk):
    hub.moved = {"/repos/old/name": "/repos/team/perf"}
    upsert(talk, find_issue(talk, "old/name", 3), texts(), KIND, run=RUN)
    check(hub)


def refused(hub, talk, status, message=""):
    hub.fault("GET /repos", status, message=message)
    with pytest.raises(Refused) as caught:
        post(talk)
    assert caught.value.exit_code == 3
    assert caught.value.status == status
    assert hub.writes() == []
    return str(caught.value)


@pytest.mark.parametrize(
    ("status", "message", "advice"),
    [
        (401, "Bad credentials", "token in GITHUB_TOKEN is wrong, expired or revoked"),
        (403, "Resource not accessible by personal access token", "needs Issues: read and write"),
        (403, "Resource protected by organization SAML enforcement.", "single sign-on"),
        (404, "Not Found", "does not exist, or the token does not see it"),
        (410, "This issue was deleted", "deleted, or issues are switched off"),
        (422, "Validation Failed", "invalid or for spam"),
        (418, "teapot", "no answer that GitHub documents"),
        (307, "Temporary", "has moved"),
    ],
)
def test_each_refusal_in_its_own_words(hub, talk, status, message, advice):
    refusal = refused(hub, talk, status, message)
    assert advice in refusal
    assert message in refusal
    assert "repository team/perf" in refusal


def test_what_the_server_says_does_not_break_the_line(hub, talk):
    refusal = refused(hub, talk, 403, "no\n\x1b[31mred" + "x" * 1000)
    assert "\n" not in refusal
    assert "\x1b" not in refusal
    assert len(refusal) < 700


@pytest.mark.parametrize("before", ["", "x" * 290, "Authorization: token "])
def test_a_server_that_repeats_the_token_does_not_get_it_printed(hub, talk, before):
    refusal = refused(hub, talk, 403, f"{before}{TOKEN} is not allowed")
    assert TOKEN[:8] not in refusal
    hub.fault("GET", 307, message="x", headers={"Location": f"/{TOKEN}"})
    with pytest.raises(Refused) as caught:
        post(talk)
    assert TOKEN not in str(caught.value)


def test_no_comment_holds_the_token(hub, talk):
    post(talk, bodies(f"the model printed {TOKEN}", KIND, run=RUN))
    assert TOKEN not in hub.of()[0]
    assert "the model printed ***" in hub.of()[0]


def test_a_locked_issue(hub, talk):
    hub.locked.add(3)
    with pytest.raises(Refused, match="The issue is locked: unlock it"):
        post(talk)


def test_an_issue_that_is_not_there(hub, talk):
    with pytest.raises(Refused, match=r"issue 77 of team/perf: .* answers 404"):
        find_issue(talk, "team/perf", 77)


def test_a_wrong_token(hub, another):
    with pytest.raises(Refused, match="answers 401"):
        post(another(token="wrong"))


def test_what_does_not_answer_like_github(hub, talk):
    hub.moved = {"/repos/team/perf": "/user"}
    hub.fault("GET /user", 200, message="welcome")
    with pytest.raises(MachineError, match="does not answer like GitHub"):
        post(talk)


def test_nobody_there(another, clock):
    with pytest.raises(MachineError, match=r"127.0.0.1:9 refuses connections; check --base-url") as caught:
        post(another(base_url="http://127.0.0.1:9"))
    assert "token" not in str(caught.value)
    assert clock.slept == [2.0, 8.0, 20.0]


def test_no_such_host(another):
    with pytest.raises(MachineError, match=r"no such host, or no DNS here|refuses|proxy|lost"):
        post(another(base_url="https://github.invalid/api/v3"))


def test_no_tls(hub, another):
    with pytest.raises(MachineError, match=r"no trusted TLS connection.*REQUESTS_CA_BUNDLE"):
        post(another(base_url=hub.url.replace("http:", "https:")))


@pytest.mark.parametrize("token", [None, "", "  ", "a\nb", "a b", "é"])
def test_tokens_that_are_none(token):
    with pytest.raises(MachineError, match="GITHUB_TOKEN") as caught:
        checked_token(token)
    assert "a\nb" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "api.github.com", "ftp://x", "https://", "https://github.com", "http://ghe.example.com/api/v3",
        "https://x?token=1", "https://x:port", "http://127.0.0.1.example.com",
    ],
)  # fmt: skip
def test_addresses_that_are_refused(url):
    with pytest.raises(UsageError, match="--base-url"):
        checked_address(url)


def test_a_password_in_an_address_is_not_repeated():
    with pytest.raises(UsageError) as caught:
        checked_address("https://me:secret@ghe.example.com/api/v3")
    assert "secret" not in str(caught.value)


def test_no_proxy_reads_the_token(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "")
    with pytest.raises(UsageError, match="a proxy would read the token"):
        checked_address("http://127.0.0.1:8000")
    assert checked_address("https://ghe.example.com/api/v3/") == "https://ghe.example.com/api/v3"


def test_the_token_is_in_no_log(hub, talk, another, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    hub.fault("POST", "lose")
    post(talk)
    hub.fault("GET", 403, message="no")
    with pytest.raises(Refused) as caught:
        post(another())
    assert caplog.records
    assert TOKEN not in caplog.text
    assert TOKEN not in repr(caught.value)
    assert TOKEN not in "".join(capfd.readouterr())


def test_text_that_no_json_takes(hub, talk):
    wanted = bodies("model \ud800\x00 é 😀\tx\r\ny", KIND, run=RUN)
    post(talk, wanted)
    assert hub.of()[0].partition("\n")[2] == "model ?\ufffd é 😀\tx\r\ny"
    post(talk, wanted)
    assert len(hub.of()) == 1
