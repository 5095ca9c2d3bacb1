"""A back end of a package that nobody has."""

PACKAGES = ("no_such_package_of_perfdash",)
EXTRA = "none"


def prepare(module, inputs, job):
    raise AssertionError("it was prepared without its package")
