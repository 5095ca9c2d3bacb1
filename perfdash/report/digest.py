"""A run in a few lines for a mail or chat: changes and links. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from perfdash.report import site_links
from perfdash.report.cause_text import FAILING, ReportedCause
from perfdash.report.changes import BAD, GROUPS, NEW_FAILURE, SUSPECTED
from perfdash.report.markdown import plain
from perfdash.report.night import Night, case_count, compared_with, headline, not_tonight, pass_count
from perfdash.report.number_format import percent_change
from perfdash.stats.speedup import null_warning

_SHOWN = {True: 10, False: 3}  # causes of a group, by whether it is or may be bad
_LINE = 300


@dataclass(frozen=True)
class Digest:
    """A message; `lines` hold foreign text (names, errors), `title` and `links` do not."""

    title: str
    lines: tuple[str, ...]
    links: tuple[tuple[str, str], ...] = ()  # what it is, address

    def mail(self) -> str:
        """The body of a plain text mail."""
        addresses = [f"{name}: {address}" for name, address in self.links]
        return "\n".join([self.title, "", *self.lines, *(["", *addresses] if addresses else [])]) + "\n"

    def chat(self) -> str:
        """The text in Slack's mrkdwn, which Mattermost accepts as well.

        Foreign text stands in a code block, where nothing becomes a mention, a link or a picture.
        """
        body = "\n".join(self.lines).replace("```", "'''")
        parts = [f"*{_escaped(self.title)}*"]
        if body.strip():
            parts.append(f"```\n{_escaped(body)}\n```")
        parts += [f"{_escaped(name)}: {_escaped(address)}" for name, address in self.links]
        return "\n".join(parts)


def run_digest(night: Night, *, site_url: str | None = None, link: str | None = None) -> Digest:
    """Write the digest of a run.

    `site_url`: the site's address; `link`: another page on this run, such as the comment or the build.
    """
    run = night.run
    lines = [
        f"Run {run.name} ({run.state}): {case_count(night)} cases on {run.host_class}"
        + (f", torch {run.torch_build}" if run.torch or run.torch_git_version else "")
    ]
    passed, attempted = pass_count(night)
    if attempted:
        lines.append(f"{passed} of {attempted} cases pass.")
    if left_out := not_tonight(night):
        lines.append(f"{left_out}.")
    if warning := null_warning((run.noise.get("null") or {}).get("worst")):
        lines.append(f"WARNING: {warning}.")
    lines += compared_with(night)
    if night.nightly:
        lines.append(f"{night.nightly}.")
    for group in GROUPS:
        causes = [cause for cause in night.causes if cause.group == group and not cause.acknowledged]
        if causes:
            limit = _SHOWN[group in (*BAD, SUSPECTED)]
            is_old = group == NEW_FAILURE and not all(cause.fresh for cause in causes)
            heading = FAILING.capitalize() if is_old else group
            lines += ["", f"{heading}:", *(f"- {cause_line(cause)}" for cause in causes[:limit])]
            if len(causes) > limit:
                lines.append(f"- and {len(causes) - limit} more")
    return Digest(
        f"perfdash: {headline(night)}",
        tuple(plain(line, _LINE) for line in lines),
        page_links(site_url, link),
    )


def broken_nightly(why: str, *, site_url: str | None = None, link: str | None = None) -> Digest:
    """Write the message that a nightly failed, with the reason, first line first."""
    lines = [plain(line, _LINE) for line in why.strip().splitlines() if line.strip()]
    more = [f"and {len(lines) - 20} more lines"] if len(lines) > 20 else []
    return Digest("perfdash: the nightly broke", (*lines[:20], *more), page_links(site_url, link))


def cause_line(cause: ReportedCause) -> str:
    """A cause in one line of plain text."""
    levels = ""
    if len(cause.members) == 1:
        (member,) = cause.members
        if member.before and member.after and member.what != "status":
            levels = f" {member.before} → {member.after}"
        if member.interval:
            low, high = member.interval
            levels += f" ({percent_change(low)} to {percent_change(high)})"
    since = "" if cause.bad is None else f", since {cause.bad.started[:10]}"
    evidence = f", {cause.evidence}" if cause.evidence else ""
    where = f", {cause.attribution}" if cause.attribution else ""
    blamed = "".join(f", {culprit}" for culprit in cause.culprits[:1])
    return f"{cause.headline}{levels}{since}{evidence}{where}{blamed}"


def page_links(site_url: str | None, link: str | None) -> tuple[tuple[str, str], ...]:
    """The links below a digest: what each is, and its address."""
    links = [("More", link)] if link else []
    if site_url:
        site = site_url.rstrip("/") + "/"
        links += [("Dashboard", site + site_links.OVERVIEW), ("Regressions", site + site_links.REGRESSIONS)]
    return tuple(links)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
