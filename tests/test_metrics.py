from perfdash.metrics import CHARTS, JUDGED, JUDGED_COUNTS, METRICS, NUMBERS, PARTS, title_of


def test_names_and_places_are_given_once():
    names = [metric.name for metric in METRICS.values() if metric.name]
    places = [chart.place for chart in CHARTS.values()]
    assert len(set(names)) == len(names)
    assert places == list(range(1, len(places) + 1))


def test_every_number_is_judged_or_evidence():
    judged = {*JUDGED, *JUDGED_COUNTS}
    assert {column for column, metric in NUMBERS.items() if not metric.is_evidence} == judged
    assert {"speedup", "compilation_s", "compression_ratio", "graphs"}.isdisjoint(judged)
    assert all(metric.is_evidence for metric in METRICS.values() if metric.kind == "status")


def test_parts_are_judged_after_their_step():
    order = list(JUDGED)
    assert all(order.index(metric.part_of) < order.index(column) for column, metric in PARTS.items())


def test_units_and_scales():
    assert (METRICS["backend_ms"].unit, METRICS["backend_ms"].scale) == ("ms", 1.0)
    assert (METRICS["eager_peak_bytes"].unit, METRICS["eager_peak_bytes"].scale) == ("MB", 1e-6)
    assert METRICS["graph_breaks"].comparison == "count"
    assert METRICS["forward_ms"].bisect_title == "compiled forward pass"


def test_a_foreign_metric_is_its_own_title():
    assert title_of("fallbacks") == "fallbacks to eager kernels"
    assert title_of("tokens_per_second") == "tokens_per_second"
