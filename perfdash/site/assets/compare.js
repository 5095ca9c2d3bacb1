/* Any two nights beside each other, from files of numbers that are loaded as scripts: a page opened from a
   file may load those, and nothing else. It divides and averages; which change is real is decided in Python. */
"use strict";

(() => {
  const { element, state } = perfdash;
  const section = document.getElementById("any-two");
  const { nights, command, machines } = perfdash.block("compare-data") ?? {};
  if (!section || !nights || nights.length < 2) return;

  const METRICS = {
    speedup: ["speedup", "x"],
    backend_ms: ["compiled latency, ms", ""],
    eager_ms: ["eager latency, ms", ""],
    compilation_s: ["compilation, s", ""],
    compression_ratio: ["memory compression", "x"],
    backend_peak_bytes: ["compiled peak memory, bytes", ""],
  };
  const loaded = new Map(); // by file: runs may have the same name
  let cases = new Map();
  perfdash.night = (night) => loaded.set(night.file, night);
  perfdash.cases = (all) => {
    cases = new Map(all.case.map((id, k) => [id, { name: all.name[k], page: all.page[k] }]));
  };

  const shown = (value, unit) => (unit === "x" ? `${value.toFixed(3)}x` : String(Number(value.toPrecision(4))));
  const folder = new URL(section.dataset.folder || "data/", document.baseURI);
  const pick = (title, options) => {
    const choice = ([value, text]) => element("option", { value, textContent: text });
    const select = element("select", {}, ...options.map(choice));
    return [select, element("label", {}, title, select)];
  };
  const worded = (night) => (night.label || night.name) + (night.torch ? `, torch ${night.torch}` : "");
  const choices = nights.map((night) => [night.file, worded(night)]).reverse();
  const [oldNight, oldLabel] = pick("Old", choices);
  const [newNight, newLabel] = pick("New", choices);
  const [metric, metricLabel] = pick("Metric", Object.entries(METRICS).map(([name, [title]]) => [name, title]));
  const out = element("div");
  out.setAttribute("aria-live", "polite");
  section.append(element("div", { className: "pick" }, oldLabel, newLabel, metricLabel), out);
  section.hidden = false;

  async function night(file) {
    if (!loaded.has(file)) {
      await Promise.all([perfdash.load(new URL("cases.js", folder)), perfdash.load(new URL(file, folder))]);
    }
    const found = loaded.get(file);
    if (!found) throw new Error(`${file} holds another night`);
    found.place = found.place ?? new Map(found.case.map((id, k) => [id, k]));
    return found;
  }

  /** A case's value of the metric with its interval in logarithms; null where there is none. */
  function value(of, k, name) {
    const column = of.metrics[name];
    const v = column?.v[k] ?? null;
    if (!(v > 0)) return null;
    const low = column.low?.[k] ?? null, high = column.high?.[k] ?? null;
    return { v, half: low > 0 && high > 0 ? Math.log(high / low) / 2 : null };
  }

  /** Cases that both nights have, with old, new, and new / old with the interval of both together. */
  function rows(old, now, name) {
    const alike = old.methods[name] === now.methods[name], checked = old.methods.status === now.methods.status;
    return old.case.flatMap((id, k) => {
      const j = now.place.get(id);
      if (j === undefined) return [];
      const before = value(old, k, name), after = value(now, j, name);
      const ratio = alike && before && after ? after.v / before.v : null;
      const known = ratio !== null && before.half !== null && after.half !== null;
      const half = known ? Math.hypot(before.half, after.half) : null;
      const was = old.status[k], is = now.status[j];
      return [{ id, before, after, ratio, half, was, is, changed: checked && was !== is }];
    });
  }

  /** What changed most comes first: another status, then the largest ratios either way. */
  function byChange(a, b) {
    const far = (row) => (row.changed ? Infinity : row.ratio === null ? -1 : Math.abs(Math.log(row.ratio)));
    return far(a) === far(b) ? 0 : far(b) - far(a);
  }

  function cell(text, v, classes = "num") {
    const made = element("td", { className: classes, textContent: text });
    if (v !== undefined) made.dataset.v = v ?? "";
    return made;
  }

  function line(row, unit) {
    const { name, page } = cases.get(row.id) ?? { name: row.id, page: "" };
    const label = page ? element("a", { href: new URL(page, folder).href, textContent: name }) : name;
    const head = element("th", { scope: "row" }, label);
    const [low, high] = [-1, 1].map((way) => (row.ratio * Math.exp(way * row.half)).toFixed(3));
    const interval = row.half === null ? "" : `${low} to ${high}`;
    const status = row.was === row.is ? row.is : `${row.was} → ${row.is}`;
    const made = element("tr", {}, head,
      cell(row.before ? shown(row.before.v, unit) : "", row.before?.v ?? null),
      cell(row.after ? shown(row.after.v, unit) : "", row.after?.v ?? null),
      cell(row.ratio === null ? "" : row.ratio.toFixed(3), row.ratio),
      cell(interval, row.half),
      element("td", { textContent: status }));
    const badge = element("span", { className: "badge info", textContent: "changed" });
    if (row.changed) made.lastChild.append(" ", badge);
    return made;
  }

  const passes = (row) => row.was === "pass" && row.is === "pass" && row.ratio !== null;

  function means(all, unit) {
    if (!all.length) return "Nothing to compare: no case is in both nights.";
    const logs = all.filter(passes).map((row) => Math.log(row.ratio));
    if (!logs.length) return "No case passes on both nights with this metric: there is no mean.";
    const average = (values) => values.reduce((sum, one) => sum + one, 0) / values.length;
    const mean = average(logs);
    const side = (which) =>
      shown(Math.exp(average(all.filter(passes).map((row) => Math.log(row[which].v)))), unit);
    return `Geometric mean (unclipped) over the ${logs.length} cases that pass on both nights: ` +
      `${side("before")} → ${side("after")}, new / old ${Math.exp(mean).toFixed(4)}.`;
  }

  function missing(title, from, other) {
    const names = from.case.filter((id) => !other.place.has(id)).map((id) => cases.get(id)?.name ?? id);
    return names.length ? [element("p", { textContent: `${title} (${names.length}): ${names.join(", ")}` })] : [];
  }

  /** The note on two nights that have no machine in common; nothing where they have one, or none has a name. */
  function otherMachine() {
    const [old, now] = [oldNight, newNight].map((of) => nights.find((one) => one.file === of.value).hosts ?? []);
    if (!old.length || !now.length || old.some((host) => now.includes(host))) return [];
    const text = machines.replace("{old}", () => old.join("+")).replace("{new}", () => now.join("+"));
    return [element("p", { className: "note warn", textContent: text })];
  }

  let asked = 0;
  async function show() {
    const mine = ++asked;
    const name = metric.value, [title, unit] = METRICS[name];
    state.set({ old: oldNight.value, new: newNight.value, metric: name });
    let old, now;
    try {
      [old, now] = await Promise.all([night(oldNight.value), night(newNight.value)]);
    } catch (error) {
      if (mine === asked) out.replaceChildren(element("p", { className: "note warn", textContent: error.message }));
      return;
    }
    if (mine !== asked) return; // the reader has chosen another one meanwhile
    const all = rows(old, now, name).sort(byChange);
    const changed = all.filter((row) => row.changed).length;
    const differ = [name, "status"].filter((one) => old.methods[one] !== now.methods[one])
      .map((one) => `${one === "status" ? "status" : title}: ${old.methods[one]} | ${now.methods[one]}`);
    const headings = ["case", "old", "new", "new / old", "95 %", "status"];
    const heading = (text, k) => element("th", { scope: "col", textContent: text, className: k && k < 5 ? "num" : "" });
    const head = element("tr", {}, ...headings.map(heading));
    const table = element("table", { className: "data", id: "two" },
      element("caption", { textContent: `${title}: ${all.length} cases in both, ${changed} with another status` }),
      element("thead", {}, head), element("tbody", {}, ...all.map((row) => line(row, unit))));
    table.dataset.sortable = "";
    const box = element("div", { className: "scroll", tabIndex: 0 }, table);
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", "Two nights compared");
    const word = (file) => nights.find((one) => one.file === file).word;
    const words = [word(oldNight.value), word(newNight.value)];
    const asking = command.replace("{old}", () => words[0]).replace("{new}", () => words[1]);
    const judged = words.every(Boolean)
      ? ["; this does: ", element("code", { textContent: asking })]
      : [": perfdash compare does, but has no word for one of these runs alone."];
    const parted = `Measured by different methods, so not compared: ${differ.join("; ")}.`;
    out.replaceChildren(
      ...otherMachine(),
      ...(differ.length ? [element("p", { className: "note warn", textContent: parted })] : []),
      element("p", { textContent: means(all, unit) }),
      element("p", { className: "note" },
        "The intervals are those of the two measurements; what differs from night to night is not in them. " +
        "Which of these changes is more than noise this page does not judge", ...judged),
      box, ...missing("Only in the old", old, now), ...missing("Only in the new", now, old));
    perfdash.sortable(table);
  }

  function restore() {
    const known = new Set(nights.map((one) => one.file));
    const want = (key, other) => (known.has(state.get(key)) ? state.get(key) : other);
    oldNight.value = want("old", nights[nights.length - 2].file);
    newNight.value = want("new", nights[nights.length - 1].file);
    metric.value = state.get("metric") in METRICS ? state.get("metric") : "speedup";
    if (known.has(state.get("old")) || known.has(state.get("new"))) show();
    else out.replaceChildren(element("p", { className: "muted", textContent: "Choose two nights." }));
  }

  for (const select of [oldNight, newNight, metric]) select.addEventListener("change", show);
  addEventListener("hashchange", restore);
  restore();
})();
