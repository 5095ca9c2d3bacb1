"""Recipe files: what ships with perfdash loads, and what is wrong with a user's own is said in one line."""

import pytest

from perfdash.bisection.recipes import load_recipe, load_recipes, recipe_names
from perfdash.errors import UsageError

GIT = 'name = "own"\nkind = "commits"\n'


def own(tmp_path, text, name="own.toml"):
    path = tmp_path / name
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("name", recipe_names())
def test_shipped_recipes_load(name):
    recipe = load_recipe(f"{name}:timm" if name in ("pypi", "wheels") else name)
    assert recipe.name == name
    assert recipe.title


def test_the_shipped_ones():
    assert recipe_names() == ["command", "git", "nightly", "pypi", "pytorch-source", "wheels"]


def test_argument_is_filled_in():
    recipe = load_recipe("pypi:timm")
    assert recipe.versions.package == "timm"
    assert recipe.argument == "timm"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("nope", "no recipe named 'nope'; there are: command, git"),
        ("pypi", "name the package, as in pypi:NAME"),
        ("git:x", "takes nothing after the colon"),
        ("pypi:--index-url=http://x", "is no name of a package"),
        ("pypi:a b", "is no name of a package"),
        ("../suites/timm", "no recipe named"),
        ("nowhere.toml", "cannot be read"),
        ("git,nightly", "the upper rungs"),
        ("pypi:torch,git", "the upper rungs"),
        ("nightly,nightly", "the last rung of a ladder lists commits"),
    ],
)
def test_bad_words(word, message):
    with pytest.raises(UsageError, match=message):
        load_recipes(word)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind = [", "is not valid TOML"),
        ('name = "a"\nkind = "magic"', "key 'kind'"),
        (GIT + "colour = 1", "unknown key 'colour'"),
        (GIT + '[build]\ncommand = "true"\njobs = 1', "unknown key 'build.jobs'"),
        (GIT + "[build]\ntime_limit_s = 5", "give either 'command' or 'script'"),
        (GIT + '[build]\nscript = "none.sh"', "there is no file"),
        (GIT + '[build]\ncommand = "true"\nin_place = true\nincremental = true', "exclude each other"),
        (GIT + '[build]\ncommand = "true"\ntime_limit_s = 0', "key 'build.time_limit_s'"),
        (GIT + '[overlay]\npaths = ["**/*.py"]', "needs a \\[build\\]"),
        (GIT + 'exclusive = true\n[build]\ncommand = "true"\n[overlay]\npaths = ["a"]', "exclude each other"),
        (GIT + '[versions]\npackage = "x"', "goes with kind = 'versions'"),
        (GIT + '[[pins]]\nname = "p"\nrepository = "r"', "give either 'file' or 'submodule'"),
        ('name = "a"\nkind = "versions"', "goes with kind = 'versions'"),
        ('name = "a"\nkind = "versions"\n[versions]\npackage = "x"\ncommit_pattern = "abc"', "one group"),
        ('name = "a"\nkind = "versions"\n[versions]\npackage = "x"\ncommit_pattern = "("', "no regular expr"),
    ],
)
def test_bad_files(tmp_path, text, message):
    path = own(tmp_path, text)
    with pytest.raises(UsageError, match=message) as error:
        load_recipe(path)
    assert path in str(error.value)
    assert "\n" not in str(error.value).rstrip() or "TOML" in str(error.value)


def test_own_file_with_an_argument(tmp_path):
    text = 'name = "mirror"\nkind = "versions"\n[versions]\npackage = "{argument}-cpu"'
    assert load_recipe(own(tmp_path, text) + ":torch").versions.package == "torch-cpu"


def test_settings_override_and_are_checked():
    recipe = load_recipe("pypi:timm")
    assert recipe.with_settings({"versions.dependencies": "add"}).versions.dependencies == "add"
    assert recipe.with_settings({"versions.pre": "true"}).versions.pre is True
    for key in ("versions.colour", "colour", "name.first"):
        with pytest.raises(UsageError, match=key.split(".")[-1] if "name" not in key else "no table"):
            recipe.with_settings({key: 1})
    with pytest.raises(UsageError, match=r"key 'versions.dependencies'"):
        recipe.with_settings({"versions.dependencies": "guess"})


def test_identity_holds_what_decides_the_build(tmp_path):
    (tmp_path / "b.sh").write_text("true")
    text = GIT + '[build]\nscript = "b.sh"\n'
    first = load_recipe(own(tmp_path, text)).identity()
    assert load_recipe(own(tmp_path, text + "time_limit_s = 5\ncost_s = 9\n")).identity() == first
    assert load_recipe(own(tmp_path, text + "env = {A = '1'}")).identity() != first
    (tmp_path / "b.sh").write_text("false")
    assert load_recipe(own(tmp_path, text)).identity() != first


def test_a_ladder():
    assert [rung.name for rung in load_recipes("nightly, git")] == ["nightly", "git"]
