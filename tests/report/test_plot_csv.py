"""CSV for Jenkins' plot plugin: two lines, labels that stay the same, empty where nothing was measured."""

from perfdash.history.results import Row
from perfdash.records import Case
from perfdash.report.night_export import PLOTS, plot_csv


def row(model, ratio, status="pass", **case):
    suite = case.pop("suite", "timm")
    values = {"speedup": ratio, "compilation_s": 10.0, "compression_ratio": 1.5}
    return Row(Case(suite, model, **case), status, values if status == "pass" else {})


def read(text):
    lines = text.splitlines()
    assert len(lines) == 2
    lines = [line.split(",") for line in lines]
    return dict(zip(*lines, strict=True))


def test_a_column_a_setting_and_both_means():
    rows = [row("a", 2.0), row("b", 0.5), row("c", 1.0, "crash"), row("d", 1.0, "skipped"),
            row("a", 3.0, backend="onnxruntime", threads=4, dtype="amp", amp_dtype="bfloat16")]  # fmt: skip
    files = {name: read(text) for name, text in plot_csv(rows).items()}
    first, other = "timm inductor cpu float32 1t inference", "timm onnxruntime cpu amp-bfloat16 4t inference"
    assert files == {
        "speedup_geometric_mean.csv": {first: "1", other: "3"},
        "speedup_geometric_mean_clipped_at_1.csv": {first: "1.41421", other: "3"},
        "pass_rate_percent.csv": {first: "66.6667", other: "100"},
        "compilation_seconds_mean.csv": {first: "10", other: "10"},
        "compression_ratio_geometric_mean.csv": {first: "1.5", other: "1.5"},
    }


def test_what_was_not_measured_is_an_empty_cell_and_its_label_stays():
    files = plot_csv([row("a", 1.0, "crash")])
    assert files["speedup_geometric_mean.csv"] == "timm inductor cpu float32 1t inference\n\n"
    assert read(files["pass_rate_percent.csv"]) == {"timm inductor cpu float32 1t inference": "0"}
    assert plot_csv([row("a", 1.0, "skipped")])["pass_rate_percent.csv"].endswith("\n\n")


def test_nothing_measured_at_all():
    assert plot_csv([]) == dict.fromkeys(PLOTS, "\n\n")


def test_labels_survive_the_plugin_and_stay_apart():
    names = ["a,b", "a;b", 'a"b', "a\\b", "a\nb", "模型", "<b>"]
    files = plot_csv([row("m", 1.5, suite=name) for name in names])
    labels = read(files["speedup_geometric_mean.csv"])
    assert len(labels) == len(names)
    assert not set("".join(labels)) & set(',;"\\\n<>')
    assert all(label.isascii() for label in labels)
