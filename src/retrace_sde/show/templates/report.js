(() => {
"use strict";
// Figures of the report, drawn as SVG from the numbers in the page. Names only ever become text nodes.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function make(name, attributes, parent, text) {
  const node = document.createElementNS(SVG, name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.appendChild(node);
  return node;
}

function show(value, digits = 4) {
  if (value === null || value === undefined) return "missing";
  const size = Math.abs(value), plain = +value.toPrecision(digits);
  const text = size !== 0 && (size >= 1e6 || size < 1e-3) ? plain.toExponential() : String(plain);
  return text.replaceAll("-", "−");
}

const short = (name, most = 14) => (name.length > most ? name.slice(0, most - 1) + "…" : name);
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const range = (n) => Array.from({ length: n }, (_, k) => k);

// ---- tooltips: the nearest mark under the pointer, or the next one by arrow key -------------------------

const tip = $("tip"), said = $("said");

function hideTip() { tip.hidden = true; }

function showTip(svg, mark, aloud) {
  tip.textContent = mark.text;
  tip.hidden = false;
  const box = svg.getBoundingClientRect();
  const scale = box.width / svg.viewBox.baseVal.width;
  const x = box.left + mark.x * scale, y = box.top + mark.y * scale;
  tip.style.left = clamp(x + 12, 4, Math.max(4, innerWidth - tip.offsetWidth - 4)) + "px";
  const above = y - tip.offsetHeight - 12;
  tip.style.top = (above > 4 ? above : y + 16) + "px";
  if (aloud) said.textContent = mark.text;
}

// A chart redraws itself when its width or what it shows changes. `draw(svg, width)` returns
// {height, marks, columns, reach, bars}: marks {x, y, text, w, node} are what can be pointed at (node lights up);
// columns make a grid of them; with bars only the distance along x counts.
const charts = [];

function chart(id, label, draw) {
  const holder = $(id);
  if (!holder) return () => {};
  const svg = make("svg", { tabindex: 0, role: "application", "aria-roledescription": "figure" }, holder);
  let drawn = { marks: [] }, at = -1, ring = null, lit = null;

  function point(k, aloud) {
    at = k;
    if (ring) ring.remove();
    if (lit) lit.classList.remove("lit");
    ring = lit = null;
    if (k < 0) return hideTip();
    const mark = drawn.marks[k], w = mark.w || 0;
    if (mark.node) (lit = mark.node).classList.add("lit");
    ring = w ? make("rect", { x: mark.x - w / 2, y: mark.y - w / 2, width: w, height: w, class: "ring" }, svg)
             : make("circle", { cx: mark.x, cy: mark.y, r: 6, class: "ring" }, svg);
    showTip(svg, mark, aloud);
  }

  function redraw() {
    const width = Math.max(260, holder.clientWidth || 600);
    svg.replaceChildren();
    at = -1; ring = lit = null; hideTip();
    drawn = draw(svg, width);
    svg.setAttribute("viewBox", `0 0 ${width} ${drawn.height}`);
    svg.setAttribute("width", width);
    svg.setAttribute("height", drawn.height);
    const text = typeof label === "function" ? label() : label;
    svg.setAttribute("aria-label", `${text} Arrow keys step through its values.`);
  }

  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    let best = -1, least = (drawn.reach || 30) ** 2;
    drawn.marks.forEach((mark, k) => {
      const gap = (mark.x - x) ** 2 + (drawn.bars ? 0 : (mark.y - y) ** 2);
      if (gap < least) { least = gap; best = k; }
    });
    if (best !== at) point(best);
  });
  svg.addEventListener("pointerleave", () => point(-1));
  svg.addEventListener("blur", () => point(-1));
  svg.addEventListener("keydown", (event) => {
    const n = drawn.marks.length, row = drawn.columns || 1;
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: row, ArrowUp: -row }[event.key];
    if (event.key === "Escape") return point(-1);
    if (!n || (!step && event.key !== "Home" && event.key !== "End")) return;
    event.preventDefault();
    const next = event.key === "Home" ? 0 : event.key === "End" ? n - 1 : at < 0 ? 0 : at + step;
    point(clamp(next, 0, n - 1), true);
  });
  charts.push({ holder, redraw, width: 0 });
  return redraw;
}

function fill(select, names, chosen) {
  if (!select) return;
  names.forEach((name, k) => select.add(new Option(name, k, false, k === chosen)));
}

// ---- scales and axes ----------------------------------------------------------------------------------------

function ticks(low, high, count) {
  const raw = (high - low) / Math.max(count, 1) || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((each) => each * power >= raw) * power;
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
  return found.map((value) => +value.toPrecision(12));
}

function frame(svg, box, x, y, titles) {
  const px = (v) => box.x + ((v - x[0]) / (x[1] - x[0])) * box.w;
  const py = (v) => box.y + box.h - ((v - y[0]) / (y[1] - y[0])) * box.h;
  for (const v of ticks(y[0], y[1], Math.max(2, Math.floor(box.h / 55)))) {
    make("path", { d: `M${box.x} ${py(v)}h${box.w}`, class: "grid" }, svg);
    make("text", { x: box.x - 6, y: py(v) + 4, "text-anchor": "end", class: "soft" }, svg, show(v));
  }
  for (const v of ticks(x[0], x[1], Math.max(2, Math.floor(box.w / 75)))) {
    make("path", { d: `M${px(v)} ${box.y + box.h}v4`, class: "axis" }, svg);
    make("text", { x: px(v), y: box.y + box.h + 17, "text-anchor": "middle", class: "soft" }, svg, show(v));
  }
  make("path", { d: `M${box.x} ${box.y + box.h}h${box.w}`, class: "axis" }, svg);
  make("text", { x: box.x + box.w / 2, y: box.y + box.h + 36, "text-anchor": "middle" }, svg, titles[0]);
  const middle = box.y + box.h / 2;
  make("text", { x: 13, y: middle, "text-anchor": "middle", transform: `rotate(-90 13 ${middle})` }, svg, titles[1]);
  return [px, py];
}

function extent(values, room = 0.05) {
  let low = Infinity, high = -Infinity;
  for (const v of values) if (v !== null) { low = Math.min(low, v); high = Math.max(high, v); }
  if (!(low <= high)) return [0, 1];
  const pad = (high - low || Math.abs(high) || 1) * room;
  return [low - pad, high + pad];
}

// ---- heat maps -----------------------------------------------------------------------------------------------

const STOPS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];

function viridis(t) {
  t = Math.round(clamp(t, 0, 1) * 48) / 48;
  const k = Math.min(3, Math.floor(t * 4)), f = t * 4 - k;
  return `rgb(${STOPS[k].map((v, c) => Math.round(v + f * (STOPS[k + 1][c] - v))).join(",")})`;
}

// Mixed by the style sheet, so that light, dark and print each have their own zero.
function signed(t) {
  const share = Math.round(clamp(Math.abs(t), 0, 1) * 40) * 2.5;
  return `color-mix(in oklab, var(--${t < 0 ? "neg" : "pos"}) ${share}%, var(--zero))`;
}

function heat(svg, values, box, colour) {
  const rows = values.length, columns = values[0].length, w = box.w / columns, h = box.h / rows;
  const paths = new Map();
  values.forEach((row, i) => row.forEach((v, j) => {
    if (v === null) return;
    const key = colour(v);
    const cell = `M${(box.x + j * w).toFixed(2)} ${(box.y + i * h).toFixed(2)}h${w.toFixed(2)}v${h.toFixed(2)}h${(-w).toFixed(2)}z`;
    paths.set(key, (paths.get(key) || "") + cell);
  }));
  for (const [key, d] of paths) {
    const path = make("path", { d, "shape-rendering": "crispEdges" }, svg);
    path.style.fill = key;
  }
  make("rect", { x: box.x, y: box.y, width: box.w, height: box.h, class: "axis" }, svg);
}

function key(svg, x, y, width, colour, labels) {
  range(24).forEach((k) => {
    const bar = make("rect", { x: x + (k * width) / 24, y, width: width / 24 + 0.5, height: 9 }, svg);
    bar.style.fill = colour(k / 23);
  });
  labels.forEach((text, k) => make("text", {
    x: x + (labels.length === 1 ? 0 : (k * width) / (labels.length - 1)), y: y + 22, class: "soft",
    "text-anchor": k === 0 ? "start" : k === labels.length - 1 ? "end" : "middle",
  }, svg, text));
}

// The widest of some labels, in pixels; of a figure that is folded away, by their letters.
function widest(svg, names) {
  const probe = make("text", {}, svg);
  const wide = names.map((name) => { probe.textContent = name; return probe.getComputedTextLength() || 7.5 * name.length; });
  probe.remove();
  return Math.max(...wide);
}

// Numbers are in the data's units; colours (`shade`) in units that make variables comparable.
function matrixChart(id, label, rows, matrix) {
  const { columns, values, shade, low, high } = matrix;
  const largest = (cells) => Math.max(1e-300, ...cells.flat().map((v) => Math.abs(v || 0)));
  const limit = largest(shade);
  return chart(id, label, (svg, width) => {
    const tall = widest(svg, columns.map((name) => short(name, 12)));
    const left = 10 + widest(svg, rows.map((name) => short(name)));
    const w = Math.min((width - left - 6) / columns.length, 78, Math.max(620 / columns.length, 5));
    const h = Math.min(w, 48);
    const upright = w < tall + 4, top = upright ? 10 + tall : 22;
    const box = { x: left, y: top, w: w * columns.length, h: h * rows.length };
    const every = Math.max(1, Math.ceil(13 / h)), across = upright ? Math.max(1, Math.ceil(13 / w)) : 1;
    heat(svg, shade, box, (v) => signed(v / limit));
    rows.forEach((name, i) => {
      if (i % every) return;
      make("text", { x: left - 6, y: box.y + (i + 0.5) * h + 4, "text-anchor": "end" }, svg, short(name));
    });
    columns.forEach((name, j) => {
      if (j % across) return;
      const x = left + (j + 0.5) * w;
      const turn = upright ? { "text-anchor": "start", transform: `rotate(-90 ${x + 4} ${top - 6})`, x: x + 4 } : { "text-anchor": "middle", x };
      make("text", { y: top - 6, ...turn }, svg, short(name, 12));
    });
    const marks = [], digits = Math.max(...values.flat().map((v) => show(v, 2).length));
    const font = h < 17 ? 0 : [12, 11, 10, 9].find((size) => digits * size * 0.57 <= w - 2) || 0;
    values.forEach((row, i) => row.forEach((v, j) => {
      const x = left + (j + 0.5) * w, y = top + (i + 0.5) * h;
      const interval = low ? `\n95 % interval ${show(low[i][j])} … ${show(high[i][j])}` : "";
      marks.push({ x, y, w: Math.min(w, h), text: `${columns[j]} → ${rows[i]}: ${show(v)}${interval}` });
      if (!font) return;
      const text = make("text", { x, y: y + 4, "text-anchor": "middle" }, svg, show(v, 2));
      text.style.fontSize = `${font}px`;
      if (Math.abs(shade[i][j]) / limit > 0.6) text.style.fill = "var(--on-strong)";
    }));
    const span = Math.min(200, width - left - 6), foot = top + box.h + 14;
    key(svg, left, foot, span, (t) => signed(2 * t - 1), [show(-limit, 3), "0", show(limit, 3)]);
    const unit = `colour: ${matrix.unit}`;
    make("text", { x: Math.max(0, Math.min(left, width - widest(svg, [unit]) - 2)), y: foot + 38, class: "soft" }, svg, unit);
    return { height: foot + 46, marks, columns: columns.length, reach: Math.max(w, h) };
  });
}

// ---- the order -------------------------------------------------------------------------------------------------

let unit = 0, step = 0;
const now = () => data.units[unit];
const called = (order) => order.map((a) => now().labels[a]);
const ranked = new Map();

function ranks(k) {
  if (ranked.has(k)) return ranked.get(k);
  const costs = data.units[k].costs, all = [];
  costs.forEach((row, i) => row.forEach((v, j) => { if (i !== j && v !== null) all.push([v, i, j]); }));
  all.sort((a, b) => a[0] - b[0]);
  const found = costs.map((row) => row.map(() => null));
  all.forEach(([, i, j], position) => { found[i][j] = position / Math.max(1, all.length - 1); });
  ranked.set(k, found);
  return found;
}

// A square heat map over positions: its ticks, titles and key, and a mark with a text for each cell. `names` of rows and columns
// take the place of numbers where they are short enough for all of them to be shown.
function positionMap(svg, width, values, palette, titles, ends, text, names = [null, null]) {
  const T = values.length, size = Math.min(width - 52, 440), box = { x: 46, y: 8, w: size, h: size }, w = size / T;
  heat(svg, values, box, palette);
  const numbers = ticks(0, T - 1, 4).filter((k) => k % 1 === 0).map((k) => [k, now().positions[k]]);
  const fit = w >= 13 && names.every((each, across) => !each || widest(svg, each) <= (across ? w - 4 : 24));
  const shown = (each) => (each && fit ? each.map((name, k) => [k, name]) : numbers);
  for (const [k, name] of shown(names[1])) {
    make("text", { x: box.x + (k + 0.5) * w, y: box.y + size + 15, "text-anchor": "middle", class: "soft" }, svg, name);
  }
  for (const [k, name] of shown(names[0])) {
    make("text", { x: box.x - 5, y: box.y + (k + 0.5) * w + 4, "text-anchor": "end", class: "soft" }, svg, name);
  }
  make("text", { x: box.x + size / 2, y: box.y + size + 32, "text-anchor": "middle" }, svg, titles[0]);
  make("text", { x: 12, y: box.y + size / 2, "text-anchor": "middle", transform: `rotate(-90 12 ${box.y + size / 2})` }, svg, titles[1]);
  const marks = values.flatMap((row, i) => row.map((_, j) => ({
    x: box.x + (j + 0.5) * w, y: box.y + (i + 0.5) * w, w: Math.max(w, 5), text: text(i, j),
  })));
  key(svg, box.x, box.y + size + 42, Math.min(180, size), palette, ends);
  return { height: size + 82, marks, columns: T, reach: Math.max(w, 6) };
}

function costChart(id, label, order) {
  return chart(id, label, (svg, width) => {
    const at = order(), rank = ranks(unit), { costs, labels, kind } = now();
    const text = (i, j) => i === j ? labels[at[i]] : `${labels[at[i]]}, then ${labels[at[j]]}\n${kind} ${show(costs[at[i]][at[j]])}`;
    return positionMap(svg, width, at.map((a) => at.map((b) => rank[a][b])), viridis, ["next position", "position"], ["near", "far"], text, [called(at), called(at)]);
  });
}

const before = costChart("cost-before", "Heat map of costs between slices as stored.", () => now().steps[0].order);
const after = costChart("cost-after", () => `Heat map of costs between slices, ${now().steps[step].label}.`, () => now().steps[step].order);

function walk() {
  const each = now().steps[step], slider = $("step");
  slider.max = now().steps.length - 1;
  slider.value = step;
  slider.setAttribute("aria-valuetext", each.label);
  $("step-text").textContent = each.label;
  $("cost-caption").textContent = each.label[0].toUpperCase() + each.label.slice(1);
  $("step-detail").textContent = each.detail;
  after();
}

if ($("step")) $("step").addEventListener("input", (event) => { step = +event.target.value; walk(); });

// ---- trajectories -------------------------------------------------------------------------------------------------

let variable = 0, trajectory = 0;
const paths = data.paths;
const owner = (k) => (data.shared ? 0 : k);

function pathChart(id, label, restored) {
  return chart(id, label, (svg, width) => {
    const box = { x: 58, y: 8, w: width - 68, h: 250 };
    const lines = paths.values.map((each, k) => {
      const one = data.units[owner(k)], order = one.steps[restored ? one.steps.length - 1 : 0].order;
      const xs = restored ? paths.times[owner(k)] : one.slices;
      const wrong = new Set(((paths.suspects || [])[k] || []).filter(([v]) => v === variable).map(([, a]) => a));
      return order.map((a, position) => [xs[position], each[variable][a], one.labels[a], wrong.has(a)]);
    });
    const x = extent(lines.flatMap((line) => line.map((p) => p[0])), 0.01);
    // A value that is probably wrong does not set the scale: beyond the others it is drawn at the edge.
    const y = extent(lines.flatMap((line) => line.filter((p) => !p[3]).map((p) => p[1])));
    const inside = (b) => Math.min(Math.max(b, y[0]), y[1]);
    const [px, py] = frame(svg, box, x, y, [restored ? "time" : "slice as stored", short(paths.variables[variable], 30)]);
    const draw = (line, kind) => {
      let d = "", pen = "M";
      for (const [a, b] of line) {
        if (b === null) { pen = "M"; continue; }
        d += `${pen}${px(a).toFixed(1)} ${py(inside(b)).toFixed(1)}`;
        pen = "L";
      }
      make("path", { d, class: kind }, svg);
    };
    lines.forEach((line, k) => { if (k !== trajectory) draw(line, "path"); });
    draw(lines[trajectory], "path chosen");
    const marks = lines[trajectory].filter((p) => p[1] !== null).map(([a, b, name]) => ({
      x: px(a), y: py(inside(b)),
      text: `${paths.ids[trajectory]}, ${paths.variables[variable]}: ${show(b)}\n${restored ? `time ${show(a)}, ${name}` : name}`,
    }));
    for (const [a, b] of lines.flat().filter((p) => p[3] && p[1] !== null)) {
      make("circle", { cx: px(a), cy: py(inside(b)), r: 5, class: "suspect" }, svg);
    }
    if (marks.length <= 60) marks.forEach((m) => make("circle", { cx: m.x, cy: m.y, r: 2.5, class: "dot" }, svg));
    return { height: 304, marks, bars: true };
  });
}

const stored = pathChart("paths-before", () => `Lines of ${paths.variables[variable]} as stored, ${paths.ids[trajectory]} highlighted.`, false);
const restored = pathChart("paths-after", () => `Lines of ${paths.variables[variable]} in recovered order, ${paths.ids[trajectory]} highlighted.`, true);
fill($("variable"), paths.variables, 0);
fill($("trajectory"), paths.ids, 0);
if ($("variable")) $("variable").addEventListener("change", (event) => { variable = +event.target.value; stored(); restored(); });

// ---- certainty ------------------------------------------------------------------------------------------------------

const certain = chart("positions", "Heat map of the probability of each position.", (svg, width) => {
  const { probabilities: P, positions, labels, steps } = now(), last = steps[steps.length - 1].order;
  const text = (i, j) => `${labels[last[i]]} at position ${positions[j]}: probability ${show(P[i][j])}`;
  return positionMap(svg, width, P, signed, ["position where it may stand", "position given"], ["0", "probability 1"], text, [called(last), null]);
});

const placed = chart("placed", "Probability of each observation's own position.", (svg, width) => {
  const P = now().probabilities, box = { x: 58, y: 8, w: width - 68, h: 250 };
  const at = now().positions;
  const [px, py] = frame(svg, box, [at[0] - 0.5, at[at.length - 1] + 0.5], [0, 1.02], ["position", "probability"]);
  const last = now().steps[now().steps.length - 1].order;
  const marks = P.map((row, k) => ({
    x: px(at[k]), y: py(row[k]),
    text: `position ${at[k]}: ${now().labels[last[k]]}, probability ${show(row[k])}`,
  }));
  make("path", { d: `M${box.x} ${py(0.95)}h${box.w}`, class: "axis", "stroke-dasharray": "2 4" }, svg);
  marks.forEach((m) => {
    make("path", { d: `M${m.x} ${py(0)}V${m.y}`, class: "grid" }, svg);
    make("circle", { cx: m.x, cy: m.y, r: 3, class: "dot" }, svg);
  });
  return { height: 304, marks, bars: true };
});

// With independent orders one choice of trajectory moves every figure that shows one.
function choose(k) {
  trajectory = k;
  $("trajectory").value = k;
  if (!data.shared) {
    unit = k;
    step = now().steps.length - 1;
    for (const id of ["unit", "certain-unit"]) if ($(id)) $(id).value = k;
    before(); walk();
    if (now().probabilities) { certain(); placed(); }
  }
  stored(); restored();
}

for (const id of ["unit", "certain-unit"]) fill($(id), paths.ids, 0);
for (const id of ["unit", "certain-unit", "trajectory"])
  if ($(id)) $(id).addEventListener("change", (event) => choose(+event.target.value));

// ---- the forecast --------------------------------------------------------------------------------------------------

const next = data.forecast;
if (next) {
  let variable = 0, who = 0;
  const ahead = chart("forecast-plot", () => `${paths.variables[variable]} of ${paths.ids[who]}, observed and forecast.`, (svg, width) => {
    const box = { x: 58, y: 8, w: width - 68, h: 250 }, one = data.units[owner(who)], order = one.steps[one.steps.length - 1].order;
    const past = order.map((a, k) => [paths.times[owner(who)][k], paths.values[who][variable][a]]).filter(([, v]) => v !== null);
    const times = next.times[owner(who)], [mean, low, high] = ["mean", "low", "high"].map((each) => next[each][who][variable]);
    const x = extent([...past.map(([t]) => t), ...times], 0.02), y = extent([...past.map(([, v]) => v), ...low, ...high]);
    const [px, py] = frame(svg, box, x, y, ["time", short(paths.variables[variable], 30)]);
    if (past.length) make("path", { d: past.map(([t, v], k) => `${k ? "L" : "M"}${px(t).toFixed(1)} ${py(v).toFixed(1)}`).join(""), class: "path chosen" }, svg);
    const marks = past.map(([t, v]) => ({ x: px(t), y: py(v), text: `time ${show(t)}: observed ${show(v)}` }));
    times.forEach((t, k) => {
      if (mean[k] === null) return;
      make("path", { d: `M${px(t)} ${py(low[k])}V${py(high[k])}`, class: "strong" }, svg);
      make("circle", { cx: px(t), cy: py(mean[k]), r: 4, class: "fill-neg" }, svg);
      marks.push({ x: px(t), y: py(mean[k]), text: `time ${show(t)}: forecast ${show(mean[k])}\n${show(100 * next.level)} % interval ${show(low[k])} … ${show(high[k])}` });
    });
    return { height: 304, marks, bars: true };
  });
  fill($("next-variable"), paths.variables, 0);
  fill($("next-trajectory"), paths.ids, 0);
  $("next-variable").addEventListener("change", (event) => { variable = +event.target.value; ahead(); });
  if ($("next-trajectory")) $("next-trajectory").addEventListener("change", (event) => { who = +event.target.value; ahead(); });
}

// ---- direction, gaps, eigenvalues ---------------------------------------------------------------------------------

chart("evidence", "Histogram of the trajectories' log-likelihood ratios between this order and its reverse.", (svg, width) => {
  const { edges, counts, names, mean, identified } = data.direction, n = counts.length;
  const box = { x: 58, y: 22, w: width - 68, h: 220 };
  const x = extent([edges[0], edges[n], 0], 0.03), top = Math.max(...counts) * 1.05;
  const [px, py] = frame(svg, box, x, [0, top], [width < 500 ? "this order − its reverse (nats)" : "log-likelihood, this order − its reverse (nats per trajectory)", "trajectories"]);
  const marks = counts.map((count, k) => {
    const from = px(edges[k]), to = px(edges[k + 1]), y = py(count), middle = (edges[k] + edges[k + 1]) / 2;
    const side = !identified ? "fill-soft" : middle < 0 ? "fill-neg" : "fill-pos";
    if (count) make("rect", { x: from + 0.5, y, width: Math.max(1, to - from - 1), height: py(0) - y, class: side, opacity: 0.85 }, svg);
    const who = names[k].join(", ") + (count > names[k].length ? ", …" : "");
    return { x: (from + to) / 2, y, text: `${show(edges[k])} … ${show(edges[k + 1])} nats: ${count} trajectories${count ? `\n${who}` : ""}` };
  });
  make("path", { d: `M${px(0)} ${box.y}V${py(0)}`, class: "strong" }, svg);
  make("path", { d: `M${px(mean)} ${box.y}V${py(0)}`, class: "strong", "stroke-dasharray": "5 3" }, svg);
  const anchor = px(mean) > width - 110 ? "end" : px(mean) < 110 ? "start" : "middle";
  make("text", { x: px(mean), y: 14, "text-anchor": anchor }, svg, `mean ${show(mean)}`);
  return { height: 288, marks, bars: true };
});

chart("gap-plot", "Estimated gaps by position.", (svg, width) => {
  const { values, times, low, high } = data.gaps, box = { x: 58, y: 8, w: width - 68, h: 220 }, n = values.length;
  const [px, py] = frame(svg, box, [-0.5, n - 0.5], [0, Math.max(...values, ...(high || [])) * 1.08], ["position", "gap to the next"]);
  const marks = values.map((v, k) => ({
    x: px(k), y: py(v),
    text: `from position ${k} (time ${show(times[k])}) to ${k + 1}: gap ${show(v)}${low ? `\n95 % interval ${show(low[k])} … ${show(high[k])}` : ""}`,
  }));
  marks.forEach((m, k) => {
    make("path", { d: `M${m.x} ${py(0)}V${m.y}`, class: "pos", "stroke-width": clamp(box.w / n - 2, 1, 12), opacity: 0.5 }, svg);
    if (low) make("path", { d: `M${m.x} ${py(low[k])}V${py(high[k])}`, class: "strong" }, svg);
    make("circle", { cx: m.x, cy: m.y, r: 3, class: "dot" }, svg);
  });
  return { height: 274, marks, bars: true };
});

chart("eigen-plot", "Eigenvalues of A in the complex plane.", (svg, width) => {
  const own = data.eigenvalues, twin = data.twin_eigenvalues || [], all = [...own, ...twin];
  const box = { x: 58, y: 8, w: width - 68, h: 260 };
  const x = extent([0, ...all.map((e) => e[0])], 0.12);
  const tall = Math.max(...all.map((e) => Math.abs(e[1])), (x[1] - x[0]) / 8) * 1.15;
  const [px, py] = frame(svg, box, x, [-tall, tall], ["real part (growth)", "imaginary part"]);
  make("rect", { x: box.x, y: box.y, width: Math.max(0, px(0) - box.x), height: box.h, class: "half" }, svg);
  make("path", { d: `M${px(0)} ${box.y}v${box.h}M${box.x} ${py(0)}h${box.w}`, class: "axis" }, svg);
  const told = ([re, im], whose) => {
    const mode = re < 0 ? "half-life" : "doubles in";
    const turn = im ? `, period ${show((2 * Math.PI) / Math.abs(im))}` : "";
    return `${whose}${show(re)}${im ? ` ${im < 0 ? "−" : "+"} ${show(Math.abs(im))} i` : ""}\n${mode} ${show(Math.LN2 / Math.abs(re))}${turn}`;
  };
  const marks = [];
  twin.forEach((e) => {
    make("rect", { x: px(e[0]) - 5, y: py(e[1]) - 5, width: 10, height: 10, class: "strong" }, svg);
    marks.push({ x: px(e[0]), y: py(e[1]), text: told(e, "twin: ") });
  });
  own.forEach((e) => {
    make("circle", { cx: px(e[0]), cy: py(e[1]), r: 4.5, class: e[0] < 0 ? "fill-pos" : "fill-neg" }, svg);
    marks.push({ x: px(e[0]), y: py(e[1]), text: told(e, "") });
  });
  return { height: 314, marks };
});

// ---- drift and diffusion ------------------------------------------------------------------------------------------

matrixChart("drift-map", "Heat map of the drift's coefficients.", data.names, data.drift);
if (data.twin) matrixChart("twin-map", "Heat map of the drift of the reversed twin.", data.names, data.twin);
matrixChart("diffusion-map", "Heat map of the diffusion matrix.", data.names, data.diffusion);

const square = data.drift.columns.length === data.names.length && data.drift.columns.every((name, k) => name === data.names[k]);
const loops = data.names.length <= 12;
let kind = 0;
const drawn = (of) => of.clear.filter(([i, j]) => !square || loops || i !== j);
let effects = drawn(data.graphs[0]);
const fewest = () => Math.min(effects.length, Math.max(20, 2 * data.names.length), 80);
let edges = fewest();

// A circle of variables, or, where the drift's terms are not the variables, terms on the left and variables on the right.
function places(width, rows, columns) {
  if (!square) {
    const height = clamp(Math.max(rows.length, columns.length) * 34, 160, 900) + 20, side = Math.min(width / 2 - 110, 130);
    const column = (names, x, angle) => names.map((_, k) => ({ x, y: ((k + 0.5) * height) / names.length, angle }));
    return [column(columns, width / 2 - side, Math.PI), column(rows, width / 2 + side, 0), height];
  }
  const size = rows.length > 1 ? Math.min(width, 460, 240 + 30 * rows.length) : 160, radius = rows.length > 1 ? size / 2 - (loops ? 78 : 96) : 0;
  const circle = rows.map((_, k) => {
    const angle = (2 * Math.PI * k) / rows.length - Math.PI / 2;
    return { x: width / 2 + radius * Math.cos(angle), y: size / 2 + radius * Math.sin(angle), angle };
  });
  return [circle, circle, size];
}

// The curve from a to b, where its arrow ends, the point it comes from there, and where it can be pointed at.
function curve(a, b, r) {
  if (a === b) {
    const ux = Math.cos(a.angle), uy = Math.sin(a.angle);
    const p = (along, across) => ({ x: a.x + r * (ux * along - uy * across), y: a.y + r * (uy * along + ux * across) });
    const tail = p(0.5, 0.85), c1 = p(2.9, 1.9), c2 = p(2.9, -1.9), end = p(0.75, -1);
    return { d: `M${tail.x} ${tail.y}C${c1.x} ${c1.y} ${c2.x} ${c2.y} ${end.x} ${end.y}`, end, back: c2, at: p(2.3, 0) };
  }
  const dx = b.x - a.x, dy = b.y - a.y, bend = square ? 0.16 : 0.04;
  const c = { x: (a.x + b.x) / 2 - dy * bend, y: (a.y + b.y) / 2 + dx * bend };
  const far = Math.hypot(b.x - c.x, b.y - c.y) || 1, stop = (r + 2) / far;
  const end = { x: b.x - (b.x - c.x) * stop, y: b.y - (b.y - c.y) * stop };
  // Two thirds of the way: edges that cross in the middle are still distinct there.
  const at = { x: (a.x + 4 * c.x + 4 * b.x) / 9, y: (a.y + 4 * c.y + 4 * b.y) / 9 };
  return { d: `M${a.x} ${a.y}Q${c.x} ${c.y} ${end.x} ${end.y}`, end, back: c, at };
}

function graphChart(id, label, source) {
  return chart(id, label, (svg, width) => {
  const { columns, values, low, high } = source(), rows = data.names, marks = [], effects = drawn(source());
  const [from, to, height] = places(width, rows, columns);
  const many = Math.max(rows.length, columns.length), around = square && !loops ? (2 * Math.PI * (height / 2 - 90)) / many : 99;
  const r = clamp(Math.min(130 / many, around * 0.4), 2, 14), font = clamp(around, 6, 12);
  const strongest = effects.length ? effects[0][2] : 1;
  for (const [i, j, strength] of effects.slice(0, edges).reverse()) {
    const sign = values[i][j] < 0 ? "neg" : "pos", thick = 1 + 3 * Math.sqrt(strength / strongest);
    const { d, end, back, at } = curve(from[j], to[i], r);
    const node = make("path", { d, class: sign, fill: "none", "stroke-width": thick.toFixed(2), opacity: 0.8 }, svg);
    const turn = Math.atan2(end.y - back.y, end.x - back.x), head = 5 + thick * 1.2;
    const wing = (side) => `${end.x - head * Math.cos(turn + side * 0.45)} ${end.y - head * Math.sin(turn + side * 0.45)}`;
    make("path", { d: `M${end.x} ${end.y}L${wing(1)}L${wing(-1)}z`, class: `fill-${sign}` }, svg);
    marks.unshift({ ...at, node, text: `${columns[j]} → ${rows[i]}: ${show(values[i][j])}\n95 % interval for all at once ${show(low[i][j])} … ${show(high[i][j])}` });
  }
  const label = (node, name) => {
    make("circle", { cx: node.x, cy: node.y, r, class: "node" }, svg);
    const ux = Math.cos(node.angle), uy = Math.sin(node.angle), off = square && loops ? r * 2.9 : r + 5;
    const left = ux < -1e-9, x = node.x + ux * off, y = node.y + uy * off;
    if (square && !loops) {
      if (rows.length > 90) return;
      const turn = (node.angle * 180) / Math.PI + (left ? 180 : 0);
      const text = make("text", { x, y: y + font / 3, "text-anchor": left ? "end" : "start", transform: `rotate(${turn} ${x} ${y})` }, svg, short(name, 12));
      text.style.fontSize = `${font}px`;
      return;
    }
    const middle = square && Math.abs(ux) < 0.3, room = Math.floor((middle ? width : left ? x : width - x) / 7.2);
    make("text", { x, y: y + 4 + (middle ? 8 * Math.sign(uy) : 0), "text-anchor": middle ? "middle" : left ? "end" : "start", class: "halo" }, svg, short(name, clamp(room, 4, 16)));
  };
  from.forEach((node, k) => label(node, columns[k]));
  if (!square) to.forEach((node, k) => label(node, rows[k]));
  if (!effects.length) make("text", { x: width / 2, y: height / 2, "text-anchor": "middle", class: "soft halo" }, svg, "no effect is significant");
  return { height, marks, reach: 40 };
  });
}

const graph = graphChart("graph", () => `Directed graph of the ${edges} clearest effects.`, () => data.graphs[kind]);
const twinGraph = data.graphs[0].twin ? graphChart("twin-graph", "Directed graph of the clearest effects of the reversed twin.", () => data.graphs[kind].twin) : () => {};
if ($("twin-figure")) $("twin-figure").hidden = !data.graphs[0].twin;

function counted() {
  const all = data.graphs[kind];
  $("edges-control").hidden = effects.length <= 12;
  $("edges").max = Math.max(effects.length, 1);
  $("edges").value = edges;
  $("edges-text").textContent = `${edges} of ${effects.length}${all.n_clear > all.clear.length ? " drawn at most" : ""}`;
}
$("edges").addEventListener("input", (event) => { edges = +event.target.value; counted(); graph(); twinGraph(); });
fill($("graph-kind"), data.graphs.map((each) => each.label), 0);
if ($("graph-kind")) $("graph-kind").addEventListener("change", (event) => {
  kind = +event.target.value;
  effects = drawn(data.graphs[kind]);
  edges = fewest();
  counted(); graph(); twinGraph();
});
counted();

// ---- residuals ------------------------------------------------------------------------------------------------------

const rest = data.residuals;
let residual = 0;
const line = (svg, xs, ys, kind) => make("path", { d: xs.map((x, k) => `${k ? "L" : "M"}${x.toFixed(1)} ${ys[k].toFixed(1)}`).join(""), class: kind, fill: "none" }, svg);
const dots = (svg, marks, kind = "dot") => marks.forEach((m) => make("circle", { cx: m.x, cy: m.y, r: 2.5, class: kind }, svg));

if (rest) {
  const named = () => rest.variables[residual];
  const box = (width) => ({ x: 58, y: 8, w: width - 68, h: 230 });
  const qq = chart("residual-qq", () => `Quantiles of the residuals of ${named()} against a Gaussian's.`, (svg, width) => {
    const y = rest.quantiles[residual], reach = extent(rest.scores, 0.05);
    const [px, py] = frame(svg, box(width), reach, extent([...y, ...reach], 0.02), ["Gaussian quantile", "residual"]);
    line(svg, reach.map(px), reach.map(py), "axis");
    const marks = rest.scores.map((x, k) => ({ x: px(x), y: py(y[k]), text: `Gaussian ${show(x, 3)}, residual ${show(y[k], 3)}` }));
    dots(svg, marks);
    return { height: 284, marks };
  });
  const fan = chart("residual-fan", () => `Simulated and observed paths of ${named()}.`, (svg, width) => {
    const [low, middle, high] = rest.band[residual], seen = rest.observed[residual], at = rest.times;
    const [px, py] = frame(svg, box(width), extent(at, 0.01), extent([low, high, ...seen].flat()), ["time", short(named(), 30)]);
    const xs = at.map(px), up = low.map((v, k) => `${k ? "L" : "M"}${xs[k].toFixed(1)} ${py(v).toFixed(1)}`);
    const back = high.map((v, k) => `L${xs[k].toFixed(1)} ${py(v).toFixed(1)}`).reverse();
    make("path", { d: `${up.join("")}${back.join("")}z`, class: "fill-pos", opacity: 0.18 }, svg);
    line(svg, xs, middle.map(py), "path chosen");
    const solid = (values) => values.every((v) => v !== null);
    seen.forEach((values, k) => { if (solid(values)) line(svg, xs, values.map(py), k === 1 ? "strong" : "axis"); });
    const marks = at.map((t, k) => ({ x: xs[k], y: py(seen[1][k] === null ? middle[k] : seen[1][k]),
      text: `time ${show(t)}: observed ${show(seen[0][k], 3)} … ${show(seen[2][k], 3)}\nsimulated ${show(low[k], 3)} … ${show(high[k], 3)}` }));
    return { height: 284, marks, bars: true };
  });
  const positions = chart("residual-position", () => `Spread and mean of the residuals of ${named()} by position.`, (svg, width) => {
    const spread = rest.spreads[residual], mean = rest.means[residual], n = rest.steps[rest.steps.length - 1];
    const [px, py] = frame(svg, box(width), [-0.5, n + 0.5], extent([...spread, ...mean, 0, 1.1]), ["position", "residual"]);
    for (const level of [0, 1]) line(svg, [px(-0.5), px(n + 0.5)], [py(level), py(level)], "axis");
    const marks = rest.steps.filter((_, k) => spread[k] !== null).map((at, k) => ({ x: px(at), y: py(spread[k]), text: `after position ${at}: spread ${show(spread[k], 3)}, mean ${show(mean[k], 3)}` }));
    dots(svg, marks);
    rest.steps.forEach((at, k) => {
      if (mean[k] === null) return;
      const x = px(at), y = py(mean[k]);
      make("path", { d: `M${x - 3} ${y - 3}l6 6m0 -6l-6 6`, class: "axis" }, svg);
    });
    return { height: 284, marks, bars: true };
  });
  const auto = chart("residual-auto", () => `Autocorrelation of the residuals of ${named()}.`, (svg, width) => {
    const values = rest.autocorrelations[residual], n = values.length, lags = range(n).map((k) => k + 1);
    const reach = Math.max(...rest.chance);
    const [px, py] = frame(svg, box(width), [0.5, n + 0.5], extent([...values, -1.4 * reach, 1.4 * reach]), ["steps apart", "correlation"]);
    const edge = (sign, from) => from.map((k) => `${px(k).toFixed(1)} ${py(sign * rest.chance[k - 1]).toFixed(1)}`);
    make("path", { d: `M${[...edge(1, lags), ...edge(-1, [...lags].reverse())].join("L")}z`, class: "fill-soft", opacity: 0.15 }, svg);
    line(svg, [px(0.5), px(n + 0.5)], [py(0), py(0)], "axis");
    const marks = lags.map((lag, k) => ({ x: px(lag), y: py(values[k]), text: `${lag} steps apart: ${show(values[k], 3)}` }));
    marks.forEach((m) => make("path", { d: `M${m.x} ${py(0)}V${m.y}`, class: "pos", "stroke-width": 2 }, svg));
    dots(svg, marks);
    return { height: 284, marks, bars: true };
  });
  fill($("residual-variable"), rest.variables, 0);
  $("residual-variable").addEventListener("change", (event) => { residual = +event.target.value; qq(); fan(); positions(); auto(); });
}

// ---- tables, first drawing, resizing ---------------------------------------------------------------------------

for (const input of document.querySelectorAll("[data-filter]")) {
  input.addEventListener("input", () => {
    const wanted = input.value.trim().toLowerCase();
    for (const row of $(input.dataset.filter).tBodies[0].rows)
      row.hidden = wanted !== "" && !row.textContent.toLowerCase().includes(wanted);
  });
}

if (data.units.length) {
  step = now().steps.length - 1;
  walk();
}
const watch = new ResizeObserver((entries) => {
  for (const entry of entries) {
    const found = charts.find((each) => each.holder === entry.target);
    const width = Math.round(entry.contentRect.width);
    if (found && width && width !== found.width) { found.width = width; found.redraw(); }
  }
});
for (const each of charts) { each.redraw(); watch.observe(each.holder); }
if (parent !== window) { // shown inside another page, which wants to know how tall this one is, also before it is in view
  const tell = () => parent.postMessage({ retraceHeight: document.documentElement.scrollHeight }, "*");
  tell();
  new ResizeObserver(tell).observe(document.body);
}
addEventListener("scroll", hideTip, { passive: true });
})();
