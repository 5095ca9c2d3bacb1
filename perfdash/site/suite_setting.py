"""What the cases of one suite page share: suite, device, dtype, threads, scenario, backend."""

from __future__ import annotations

from typing import NamedTuple

from perfdash.records import Case
from perfdash.report import dashboard_tables
from perfdash.report.site_links import suite_page


class SuiteSetting(NamedTuple):
    """In the words of the store's summaries: dtype is `amp-bfloat16` where amp is told to what."""

    suite: str
    device: str
    dtype: str
    threads: int
    scenario: str
    backend: str
    dynamic: bool

    @classmethod
    def of(cls, case: Case) -> SuiteSetting:
        dtype = f"amp-{case.amp_dtype}" if case.amp_dtype else case.dtype
        return cls(
            case.suite, case.device, dtype, case.threads, case.scenario, case.backend, bool(case.dynamic)
        )

    @property
    def title(self) -> str:
        """All but the suite, in a few words."""
        threads = f"{self.threads} thread{'' if self.threads == 1 else 's'}"
        words = [self.device, self.dtype, threads, self.scenario, self.backend]
        return ", ".join(words + (["dynamic shapes"] if self.dynamic else []))

    @property
    def section(self) -> dashboard_tables.DashboardSetting:
        """The section of a comment, or of an imported dashboard, that has its tables."""
        amp = self.dtype.removeprefix("amp-")
        dtype = self.dtype if amp == self.dtype else f"amp ({amp})"
        return dashboard_tables.DashboardSetting(
            self.device, dtype, self.threads, self.scenario, self.dynamic
        )

    def page(self, testbed_digest: str) -> str:
        """Where its page lies, from the site's root."""
        amp = self.dtype.removeprefix("amp-") if self.dtype.startswith("amp-") else None
        case = Case(
            self.suite,
            "",
            self.device,
            "amp" if amp else self.dtype,
            threads=self.threads,
            scenario=self.scenario,
            backend=self.backend,
            dynamic=self.dynamic,
            amp_dtype=amp,
        )
        return suite_page(testbed_digest, case)


def case_words(case: Case) -> str:
    """A case's suite and setting in few words: what is as usual (cpu, inductor, inference) is left out."""
    of = SuiteSetting.of(case)
    usual = {"cpu", "inductor", "inference"}
    rest = [word for word in (of.device, of.scenario, of.backend) if word not in usual]
    words = [of.suite, of.dtype, f"{of.threads} thread{'' if of.threads == 1 else 's'}", *rest]
    words += ["dynamic"] if of.dynamic else []
    return ", ".join(words + ([f"bs {case.batch_size}"] if case.batch_size else []))


def case_title(case: Case) -> str:
    """A case's setting and batch size in words; the batch size of a foreign file may be unknown."""
    size = f"batch size {case.batch_size}" if case.batch_size else "batch size not known"
    return f"{SuiteSetting.of(case).title}, {size}"
