"""Golden files of what is printed; PERFDASH_UPDATE_GOLDEN=1 writes them anew, to be read in the diff."""

from perfdash.report.terminal_tables import details, one_line, phase_table
from tests.report.golden_files import golden
from tests.report.results import a_night


def check(name, text):
    golden(f"{name}.txt", text + "\n")


def test_phases():
    check("phases", phase_table(a_night()[:5]))


def test_details():
    check("details", "\n\n".join(details(result) for result in a_night()[:5:4]))


def test_lines_of_a_log():
    check("lines", "\n".join(one_line(result) for result in a_night()))
