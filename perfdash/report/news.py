"""What a night brought, as Markdown: what broke, what got slower, what is fixed, each since when."""

from __future__ import annotations

from collections.abc import Sequence

from perfdash.history.rows import RunRow
from perfdash.report import links
from perfdash.report.alerts import model_of
from perfdash.report.changes import BAD, GROUPS, VANISHED, Build, Change
from perfdash.report.markdown import code, escaped, fenced, folded, link, plain, table
from perfdash.report.night import Night
from perfdash.report.quantities import percent
from perfdash.report.reproduce import command
from perfdash.stats.speedup import null_warning

_MOST = 50  # rows of one kind of change that stand open; the rest is folded


def news(night: Night, site: str | None, fold: bool) -> str:
    """The part above the tables; `site`: the site's address, ending in /, for links."""
    parts = [f"# {headline(night)}"]
    run = night.run
    if warning := null_warning((run.noise.get("null") or {}).get("worst")):
        parts.append(f"**WARNING: {escaped(warning)}.**")
    about = f"Run {code(run.name)} ({escaped(run.state)}), {_counts(night)}. {_noise(run)}"
    if night.untold:
        parts.append(f"What changed is not told: {escaped(night.untold)}.")
    elif night.against:
        parts.append(f"Compared with {escaped(night.against)}.")
    if night.caution:
        parts.append(f"Not told: {escaped(night.caution)}.")
    parts.append(about)
    if night.nightly:
        parts.append(f"**{escaped(night.nightly)}.**")
    if site:
        pages = (
            ("dashboard", links.OVERVIEW),
            ("regressions", links.REGRESSIONS),
            ("compare", links.COMPARE),
            ("what the numbers mean", links.METHOD),
        )
        parts.append(" · ".join(link(title, site + page) for title, page in pages))
    for group in GROUPS:
        changes = [one for one in night.changes if one.group == group]
        loud = [one for one in changes if not one.acknowledged]
        quiet = [one for one in changes if one.acknowledged]
        if loud:
            parts.append(f"### {group}: {len(loud)}")
            parts.append(_changes(loud[:_MOST], night, site))
        for title, rest in ((f"{len(loud) - _MOST} more", loud[_MOST:]), ("acknowledged", quiet)):
            if rest:
                body = _changes(rest, night, site)
                words = f"{group}: {title if rest is not quiet else f'{len(quiet)} acknowledged'}"
                parts.append(folded(words, body) if fold else f"### {words}\n\n{body}")
    again = [one.case for one in night.changes if one.group in BAD and one.group != VANISHED and one.case]
    if again:
        lines = (plain(command(case, run.setting, run.command), 2000) for case in again[:_MOST])
        body = fenced("\n".join(dict.fromkeys(lines)))
        title = "Measure what got worse again"
        parts.append(folded(title, body) if fold else f"{title}\n\n{body}")
    return "\n\n".join(parts)


def headline(night: Night) -> str:
    """In a few words whether something broke; also the title of the page."""
    if not night.rows:
        return "Nothing was measured"
    count, expected = len(night.rows), night.run.expected
    words = [f"incomplete ({count} of {expected} cases)"] if expected and count < expected else []
    for group in GROUPS:
        loud = [one for one in night.changes if one.group == group and not one.acknowledged]
        if loud:
            fresh = sum(one.fresh for one in loud)
            some = "" if fresh == len(loud) else f" ({fresh} new)" if fresh else " (none new)"
            name = group.lower()
            if len(loud) == 1 and name.endswith("s"):
                name = name[:-1]
            words.append(f"{len(loud)} {name}{some}")
    if not night.changes:
        words.append("not compared with other runs" if night.untold else _quiet(night))
    elif not any(not one.acknowledged for one in night.changes):
        words.append("nothing changed but what is acknowledged")
    text = ", ".join(words)
    return text[0].upper() + text[1:]


def _quiet(night: Night) -> str:
    """Nothing is said to be as it was that could not be looked at."""
    return "no change that could be told" if night.caution else "nothing changed"


def _counts(night: Night) -> str:
    count, expected = len(night.rows), night.run.expected
    text = f"{count} case{'s' * (count != 1)}"
    return f"{text} of {expected}" if expected and expected != count else text


def _noise(run: RunRow) -> str:
    """The night's noise floor: what nobody should read anything into."""
    worst = (run.noise.get("null") or {}).get("worst")
    between = (run.noise.get("between_processes") or {}).get("relative_sd")
    parts = []
    if worst is not None:
        parts.append(f"a model against itself is off by at most {worst:.2%}")
    if between is not None:
        parts.append(f"one process differs from the next by {between:.2%} (standard deviation)")
    return "Noise of this run: " + ("; ".join(parts) or "not measured") + "."


def _changes(changes: Sequence[Change], night: Night, site: str | None) -> str:
    rows = []
    for one in changes:
        page = site + links.model_page(night.testbed, one.case) if site and one.case else None
        low, high = one.interval or (None, None)
        rows.append(
            [
                link(code(model_of(one.case)), page)
                + ("" if one.fresh or not one.alert else _since(one.bad)),
                escaped(one.what),
                escaped(one.before),
                escaped(one.after),
                percent(one.change),
                f"{percent(low)} .. {percent(high)}" if one.interval else "",
                _builds(one),
                escaped("; ".join((*_state(one), *one.notes)), 300),
            ]
        )
    head = ["model", "what", "before", "after", "change", "95 % interval", "between", "more"]
    used = [place for place in range(len(head)) if any(row[place] for row in rows)]
    align = "".join("llrrrrll"[place] for place in used)
    return table([head[place] for place in used], [[row[place] for place in used] for row in rows], align)


def _since(bad: Build | None) -> str:
    return f"<br>since {bad.started[:10]}" if bad else ""


def _builds(one: Change) -> str:
    """The two nights between which it changed, each with what it measured."""
    if one.bad is None:
        return ""
    both = zip((one.good, one.bad), one.between, strict=True)
    return "<br>".join(
        f"{each.started[:10]} {', '.join(map(code, names))}" if each else "?" for each, names in both
    )


def _state(one: Change) -> list[str]:
    return [f"alert {one.alert}, {one.state}"] if one.alert else []
