"""Help in groups: sections of commands and of options, in plain text that pipes and logs can show."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

_OTHERS = "Other options"


class GroupedCommands(TyperGroup):
    """A group whose help lists its commands under the headings that they were registered with."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each heading, in the order of registration."""
        sections: dict[str, list[Any]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                heading = getattr(command, "rich_help_panel", None)
                sections.setdefault(heading if isinstance(heading, str) else "Commands", []).append(command)
        longest = max((len(str(command.name)) for rows in sections.values() for command in rows), default=0)
        limit = formatter.width - longest - 6
        for heading, commands in sections.items():
            with formatter.section(heading):
                # Names of equal length keep the columns of all sections in line.
                formatter.write_dl(
                    [
                        (f"{command.name:<{longest}}", command.get_short_help_str(limit))
                        for command in commands
                    ]
                )


class GroupedOptions(TyperCommand):
    """A command whose help lists its options under the headings that they were declared with."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each heading, in the order of declaration; options without one come last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None:
                continue
            heading = getattr(parameter, "rich_help_panel", None)
            other = "Arguments" if parameter.param_type_name == "argument" else _OTHERS
            sections.setdefault(heading if isinstance(heading, str) else other, []).append(record)
        others = sections.pop(_OTHERS, [])
        has_groups = any(heading != "Arguments" for heading in sections)
        for heading, records in [*sections.items(), (_OTHERS if has_groups else "Options", others)]:
            with formatter.section(heading):
                formatter.write_dl(records)
