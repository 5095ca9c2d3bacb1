/* Charts that answer: hover and arrow keys on the drawn SVG, and plotly for who wants to zoom. Loaded by
   site.js where a page has charts; the SVG stays as it is without it. */
"use strict";

(() => {
  const { element, state } = perfdash;
  const SVG = "http://www.w3.org/2000/svg";
  const data = perfdash.block("chart-data");
  const round = (value) => String(Number(value.toPrecision(5)));
  const worded = (value, unit) => `${round(value)}${unit === "x" || unit === "%" ? "" : " "}${unit}`.trim();

  /** What is known of a night in a chart, line by line. */
  function told(chart, k) {
    const lines = [data.names[k]];
    const torch = data.torches[data.torch[k]];
    if (torch) lines.push(`torch ${torch}`);
    const value = chart.v[k];
    if (value === null) lines.push(chart.failed.includes(k) ? "failed" : "not measured");
    else {
      const low = chart.low?.[k] ?? null, high = chart.high?.[k] ?? null;
      const about = k < chart.weekly ? "lowest and highest" : "95 %";
      const interval = low !== null && high !== null ? ` (${round(low)} to ${round(high)}, ${about})` : "";
      lines.push(worded(value, chart.unit) + interval);
    }
    for (const [at, , text] of chart.marks) if (at === data.t[k]) lines.push(text);
    return lines;
  }

  /** The place of the time next to one. */
  function nearest(time) {
    let low = 0, high = data.t.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      data.t[middle] < time ? (low = middle) : (high = middle);
    }
    return time - data.t[low] < data.t[high] - time ? low : high;
  }

  /** A box of text over a figure, beside a place of its SVG. */
  function tip(figure, svg) {
    const box = element("div", { className: "tip", hidden: true });
    box.setAttribute("role", "status");
    figure.append(box);
    const line = document.createElementNS(SVG, "path");
    line.setAttribute("class", "cursor");
    return {
      show(x, y, d, lines) {
        line.setAttribute("d", d);
        svg.append(line);
        box.replaceChildren(element("b", { textContent: lines[0] }), `\n${lines.slice(1).join("\n")}`);
        box.hidden = false;
        box.style.left = "0";
        const at = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM());
        const frame = figure.getBoundingClientRect();
        const beside = at.x - frame.left;
        const left = beside + (beside > frame.width / 2 ? -box.offsetWidth - 10 : 10);
        box.style.left = `${Math.max(0, Math.min(left, frame.width - box.offsetWidth)) + figure.scrollLeft}px`;
        box.style.top = `${Math.max(0, Math.min(at.y - frame.top, frame.height - box.offsetHeight))}px`;
      },
      hide() {
        box.hidden = true;
        line.remove();
      },
    };
  }

  const inside = (svg, event) =>
    new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());

  function hover(figure, svg, chart) {
    const [left, right, top, bottom, first, last, split = last, share = 1] = svg.dataset.plot.split(" ").map(Number);
    const width = right - left;
    const place = (time) => // weeks before the split have less room than the nights after it
      left + width * (time < split || share === 1
        ? (share * (time - first)) / (split - first)
        : 1 - ((1 - share) * (last - time)) / (last - split));
    const timeAt = (x) => {
      const part = (x - left) / width;
      return part < share ? first + (part / share) * (split - first) : last - ((1 - part) / (1 - share || 1)) * (last - split);
    };
    const box = tip(figure, svg);
    let now = -1;
    const show = (k) => {
      now = Math.max(0, Math.min(k, data.t.length - 1));
      const x = place(data.t[now]);
      box.show(x, top, `M${x} ${top}V${bottom}`, told(chart, now));
    };
    svg.querySelector("title")?.remove(); // its place is taken; the name stays for readers of screens
    svg.removeAttribute("aria-labelledby");
    const said = svg.querySelector("desc")?.textContent ?? "";
    svg.setAttribute("aria-label", `${chart.title}: ${said} Arrow keys go from night to night.`);
    svg.tabIndex = 0;
    const at = (event) => {
      const { x } = inside(svg, event);
      if (x < left - 5 || x > right + 5) box.hide();
      else show(nearest(timeAt(x)));
    };
    svg.addEventListener("pointermove", at);
    svg.addEventListener("pointerdown", at);
    svg.addEventListener("pointerleave", box.hide);
    svg.addEventListener("blur", box.hide);
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1, Home: -data.t.length, End: data.t.length }[event.key];
      if (event.key === "Escape") box.hide();
      if (!step) return;
      event.preventDefault();
      show(now < 0 ? data.t.length - 1 : now + step);
    });
  }

  function hoverMap(figure, svg) {
    const [left, top, width, height, columns, rows] = svg.dataset.cells.split(" ").map(Number);
    const nights = svg.dataset.nights.split(",");
    const ratios = svg.dataset.ratios.split(";").map((row) => row.split(","));
    const spreads = svg.dataset.spreads.split(";").map(Number);
    const names = [...svg.querySelectorAll(".rows text title")].map((title) => title.textContent);
    const box = tip(figure, svg);
    svg.addEventListener("pointermove", (event) => {
      const at = inside(svg, event);
      const column = Math.floor((at.x - left) / width), row = Math.floor((at.y - top) / height);
      if (column < 0 || column >= columns || row < 0 || row >= rows) return box.hide();
      const text = ratios[row][column];
      const x = left + column * width, y = top + row * height;
      const away = Math.log(Number(text)) / spreads[row];
      const words = `${text}x, ${Math.abs(away).toFixed(1)}σ ${away < 0 ? "worse" : "better"}`;
      const value = text === "x" ? "failed" : text === "" ? "not measured" : words;
      const frame = `M${x} ${y}h${width}v${height}h-${width}z`;
      return box.show(x + width, y + height, frame, [names[row], nights[column], value]);
    });
    svg.addEventListener("pointerleave", box.hide);
  }

  /** The colours of the sheet as plotly wants them. */
  function colours() {
    const probe = document.body.appendChild(element("span"));
    const pick = (name) => {
      probe.style.color = `var(--${name})`;
      return getComputedStyle(probe).color;
    };
    const names = ["line", "text", "muted", "bg", "grid", "fail", "worse", "better", "other", "env", "edge"];
    const found = Object.fromEntries(names.map((name) => [name, pick(name)]));
    probe.remove();
    return found;
  }

  const plain = (text) => text.replace(/[&<>]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;" })[c]);
  const SIGNS = { worse: ["worse", "W"], better: ["better", "B"], change: ["other", "C"], environment: ["env", "E"],
    method: ["muted", "M"], excluded: ["muted", "X"] };

  /** The outline of the intervals: a closed shape for each stretch of nights that have one. */
  function outline(chart, when) {
    const x = [], y = [];
    let begin = -1;
    for (let k = 0; k <= when.length; k++) {
      const here = k < when.length && chart.low[k] !== null && chart.high[k] !== null;
      const joined = here && !chart.breaks.includes(k);
      if (begin < 0 || joined) {
        if (here && begin < 0) begin = k;
        continue;
      }
      const times = when.slice(begin, k);
      x.push(...times, ...[...times].reverse(), times[0], null);
      y.push(...chart.high.slice(begin, k), ...chart.low.slice(begin, k).reverse(), chart.high[begin], null);
      begin = here ? k : -1;
    }
    return { x, y };
  }

  function figureOf(chart) {
    const c = colours();
    const when = data.t.map((time) => new Date(time * 1000).toISOString());
    const shade = c.line.replace("rgb(", "rgba(").replace(")", ", .24)");
    const bands = chart.low
      ? [{ ...outline(chart, when), mode: "lines", line: { width: 0 }, hoverinfo: "skip", fill: "toself",
           fillcolor: shade }]
      : [];
    const failed = {
      x: chart.failed.map((k) => when[k]), y: chart.failed.map(() => 0.03), yaxis: "y2", mode: "markers",
      marker: { symbol: "x-thin", size: 7, line: { width: 2, color: c.fail } },
      text: chart.failed.map((k) => told(chart, k).map(plain).join("<br>")), hovertemplate: "%{text}<extra></extra>",
    };
    // Nights by different methods are not joined: an empty point parts them.
    const parted = (values, gap) => values.flatMap((one, k) => (chart.breaks.includes(k) ? [gap(k), one] : [one]));
    const texts = data.t.map((_, k) => told(chart, k).map(plain).join("<br>"));
    const line = {
      x: parted(when, (k) => when[k]), y: parted(chart.v, () => null), mode: "lines+markers",
      line: { color: c.line, width: 1.6 }, marker: { size: 4, color: c.line },
      text: parted(texts, () => ""), hovertemplate: "%{text}<extra></extra>",
    };
    const many = chart.marks.filter(([, kind]) => kind === "environment").length > 8;
    const marks = chart.marks.filter(([, kind]) => SIGNS[kind] && !(many && kind === "environment"));
    const one = { type: "line", x0: 0, x1: 1, xref: "paper", y0: 1, y1: 1, line: { color: c.muted, width: 1, dash: "dash" } };
    const axis = { gridcolor: c.grid, linecolor: c.edge, zeroline: false };
    const layout = {
      margin: { l: 54, r: 12, t: 48, b: 34 }, showlegend: false, hovermode: "x", dragmode: "zoom",
      paper_bgcolor: c.bg, plot_bgcolor: c.bg, font: { color: c.muted, size: 11 },
      hoverlabel: { bgcolor: c.bg, bordercolor: c.muted, font: { color: c.text, size: 12 }, align: "left" },
      xaxis: { ...axis, type: "date" },
      yaxis: { ...axis, type: chart.ratio ? "log" : "linear", title: { text: plain(chart.unit) } },
      yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
      shapes: marks.map(([at, kind]) => ({
        type: "line", x0: new Date(at * 1000).toISOString(), x1: new Date(at * 1000).toISOString(), y0: 0, y1: 1,
        yref: "paper", line: { color: c[SIGNS[kind][0]], width: 1, dash: kind === "worse" ? "solid" : "dot" },
      })).concat(chart.ratio ? [one] : []),
      annotations: marks.map(([at, kind, text], k) => ({
        x: new Date(at * 1000).toISOString(), y: 1, yref: "paper", yanchor: "bottom", showarrow: false, yshift: 11 * (k % 2),
        text: `<b>${SIGNS[kind][1]}</b>`, hovertext: plain(text), font: { color: c[SIGNS[kind][0]] },
      })),
    };
    return [[...bands, line, failed], layout];
  }

  const BUTTONS = ["zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d", "toImage"];
  const SETTING = { displaylogo: false, responsive: true, modeBarButtons: [BUTTONS] };
  const open = new Map(); // name -> the element that plotly draws in
  const zoom = () => {
    const [from, to] = [state.get("from"), state.get("to")];
    return Date.parse(from) && Date.parse(to) ? { "xaxis.range": [from, to] } : { "xaxis.autorange": true };
  };

  async function draw(name, box) {
    const [traces, layout] = figureOf(data.charts[name]);
    const range = zoom()["xaxis.range"];
    if (range) layout.xaxis.range = range;
    await Plotly.react(box, traces, layout, SETTING);
  }

  async function enlarge(name, figure, svg, button) {
    button.disabled = true;
    try {
      await perfdash.load(new URL("plotly.min.js", perfdash.base));
    } catch (error) {
      button.replaceWith(element("span", { className: "muted", textContent: error.message }));
      return;
    }
    const box = element("div", { className: "plotly-box" });
    svg.after(box);
    svg.setAttribute("hidden", "");
    svg.style.display = "none";
    await draw(name, box);
    open.set(name, box);
    box.on("plotly_relayout", (change) => {
      const [from, to] = change["xaxis.range"] ?? [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      const minute = (time) => String(time).slice(0, 16).replace(" ", "T");
      if (from && to) state.set({ from: minute(from), to: minute(to) });
      else if (change["xaxis.autorange"]) state.set({ from: "", to: "" });
      else return;
      for (const [other, place] of open) if (other !== name) draw(other, place);
    });
    button.disabled = false;
  }

  function close(name, svg) {
    const box = open.get(name);
    if (box) {
      Plotly.purge(box);
      box.remove();
    }
    open.delete(name);
    svg.removeAttribute("hidden");
    svg.style.display = "";
  }

  function interactive(name, figure, svg) {
    const button = element("button", { type: "button", className: "small", textContent: "Interactive" });
    button.setAttribute("aria-pressed", "false");
    const turn = async (on) => {
      if (on) await enlarge(name, figure, svg, button);
      else close(name, svg);
      button.textContent = open.has(name) ? "Static" : "Interactive";
      button.setAttribute("aria-pressed", String(open.has(name)));
    };
    button.addEventListener("click", async () => {
      await turn(!open.has(name));
      state.set({ open: [...open.keys()].join(",") });
    });
    (figure.querySelector("figcaption") ?? figure).append(button);
    if (state.get("open").split(",").includes(name)) turn(true);
  }

  for (const figure of document.querySelectorAll("figure.chart")) {
    const svg = figure.querySelector("svg");
    const chart = data?.charts[figure.dataset.chart];
    if (svg?.dataset.cells) hoverMap(figure, svg);
    else if (svg && chart && data.t.length) {
      hover(figure, svg, chart);
      interactive(figure.dataset.chart, figure, svg);
    }
  }
  document.addEventListener("perfdash-theme", () => open.forEach((box, name) => draw(name, box)));
})();
