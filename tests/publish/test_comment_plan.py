"""What is to be done with comments: it ends with exactly what is wanted, whatever was there."""

from hypothesis import given
from hypothesis import strategies as st

from perfdash.publish.comments import Comment, Create, Edit, Remove, planned_actions


def carried_out(existing, actions):
    there = {comment.id: comment.body for comment in existing}
    fresh = max(there, default=0)
    for action in actions:
        if isinstance(action, Edit):
            assert there[action.id] != action.body
            there[action.id] = action.body
        elif isinstance(action, Remove):
            del there[action.id]
        else:
            assert isinstance(action, Create)
            fresh += 1
            there[fresh] = action.body
    return [Comment(number, body) for number, body in there.items()]


bodies = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=6)


@given(st.dictionaries(st.integers(1, 50), st.sampled_from("abcd"), max_size=6), bodies)
def test_exactly_what_is_wanted_in_its_order(there, wanted):
    existing = [Comment(number, body) for number, body in there.items()]
    after = carried_out(existing, planned_actions(existing, wanted))
    assert [comment.body for comment in sorted(after, key=lambda comment: comment.id)] == wanted
    assert planned_actions(after, wanted) == []


def test_what_is_there_already_is_left_alone():
    assert planned_actions([Comment(1, "a\r\nb\n"), Comment(2, "c")], ["a\nb", "c"]) == []


def test_a_part_that_a_person_removed():
    assert planned_actions([Comment(5, "two"), Comment(6, "three")], ["one", "two", "three"]) == [
        Edit(5, "one"),
        Edit(6, "two"),
        Create("three"),
    ]


def test_surplus_is_removed_last():
    assert planned_actions([Comment(9, "c"), Comment(1, "a"), Comment(4, "b")], ["x"]) == [
        Edit(1, "x"),
        Remove(4),
        Remove(9),
    ]
