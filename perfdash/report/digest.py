"""A run in a few lines for a mail or chat: changes and links. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from perfdash.report import site_links
from perfdash.report.alert_text import model_of
from perfdash.report.changes import BAD, GROUPS, SUSPECTED, RunChange
from perfdash.report.markdown import plain
from perfdash.report.night import Night, case_count, compared_with, headline
from perfdash.report.number_format import percent_change
from perfdash.stats.speedup import null_warning

_SHOWN = {True: 10, False: 3}  # changes of a group, by whether it is or may be bad
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
    if warning := null_warning((run.noise.get("null") or {}).get("worst")):
        lines.append(f"WARNING: {warning}.")
    lines += compared_with(night)
    if night.nightly:
        lines.append(f"{night.nightly}.")
    for group in GROUPS:
        changes = [change for change in night.changes if change.group == group and not change.acknowledged]
        if changes:
            limit = _SHOWN[group in (*BAD, SUSPECTED)]
            lines += ["", f"{group}: {len(changes)}", *(f"- {_change(change)}" for change in changes[:limit])]
            if len(changes) > limit:
                lines.append(f"- and {len(changes) - limit} more")
    return Digest(
        f"perfdash: {headline(night)}", tuple(plain(line, _LINE) for line in lines), _links(site_url, link)
    )


def broken_nightly(why: str, *, site_url: str | None = None, link: str | None = None) -> Digest:
    """Write the message that a nightly failed, with the reason, first line first."""
    lines = [plain(line, _LINE) for line in why.strip().splitlines() if line.strip()]
    more = [f"and {len(lines) - 20} more lines"] if len(lines) > 20 else []
    return Digest("perfdash: the nightly broke", (*lines[:20], *more), _links(site_url, link))


def _change(item: RunChange) -> str:
    levels = f" {item.before} → {item.after}" if item.before and item.after else ""
    change = f", {percent_change(item.change)}" if item.change is not None else ""
    if item.interval:
        low, high = item.interval
        change += f" ({percent_change(low)} to {percent_change(high)})"
    since = "" if item.fresh or item.bad is None else f", since {item.bad.started[:10]}"
    alert = f", alert {item.alert} {item.state}" if item.alert else ""
    blamed = "".join(f", {culprit}" for culprit in item.culprits[:1])
    return f"{model_of(item.case)}: {item.what}{levels}{change}{since}{alert}{blamed}"


def _links(site_url: str | None, link: str | None) -> tuple[tuple[str, str], ...]:
    links = [("More", link)] if link else []
    if site_url:
        site = site_url.rstrip("/") + "/"
        links += [("Dashboard", site + site_links.OVERVIEW), ("Regressions", site + site_links.REGRESSIONS)]
    return tuple(links)


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
