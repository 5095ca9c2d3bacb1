"""Find the commit or version that brought a change, under noise.

request and setup begin or resume a bisection. search, posterior, events and replay are pure: they know places
in an ordered list, and numbers. engine and workbench build, measure and write the journal. sources/ lists
revisions, environments/ builds them.
"""
