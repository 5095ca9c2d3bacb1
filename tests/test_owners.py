from __future__ import annotations

import pytest

from perfdash.errors import UsageError
from perfdash.owners import Owners, read_owners


def test_the_last_pattern_that_matches_a_suite_or_a_model_counts():
    owners = read_owners({"timm": "alice", "vit*": ["@bob", "org/vision"], "hf/Bert*": "carol"}, "p")
    assert owners.of("timm", "resnet18") == ("alice",)
    assert owners.of("timm", "ViT_base") == ("bob", "org/vision")
    assert owners.of("hf", "bertForMaskedLM") == ("carol",)
    assert owners.of("hf", "T5") == ()
    assert Owners().of("timm", "x") == ()


@pytest.mark.parametrize("given", ["", "a b", "a/b/c", 5, ["alice", ""], [["alice"]], "https://x.example"])
def test_what_is_no_account_is_refused_with_its_place(given):
    with pytest.raises(UsageError, match=r"^p: \[owners\] 'timm': .*is no account"):
        read_owners({"timm": given}, "p")


def test_not_a_table():
    with pytest.raises(UsageError, match=r"^p: \[owners\] is a table|^p: write \[owners\]"):
        read_owners(["alice"], "p")
