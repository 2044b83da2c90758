"use strict";
// The local page. Names from the data only ever become text; every request carries the token of the link.
const token = new URLSearchParams(location.search).get("token") || "";
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const still = matchMedia("(prefers-reduced-motion: reduce)");
const ROLES = [["subject", "subject: whose row it is"], ["slice", "slice: a label that subjects share"], ["time", "time, as far as known"],
  ["variable", "variable"], ["input", "input: dose, treatment"], ["group", "group: litter, centre"], ["none", "left out"]];
const EXAMPLES = [["recovering", "After an operation"], ["resting", "At rest"], ["treated", "A drug, on and off"]];
const FILES = {
  "ordered.csv": "The table in time order", "ordered_safe.csv": "The same for a spreadsheet: text that it would run as a formula begins with '",
  "forecast.csv": "A forecast of each subject's next observations, from the order shown", "suspects.csv": "Values that are probably wrong, if any",
  "report.html": "The report, with values of some subjects",
  "share.html": "The report to send: summaries only", "result.npz": "The result, for rt.ReTraceResult.load",
  "retrace_fit.py": "The Python that does the same",
};
let state = { stage: "empty" }, uploading = null, roles = {}, drawnResult = "", drawnTable = "";

function make(name, attributes = {}, parent = null, text) {
  const node = document.createElementNS(SVG, name);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.appendChild(node);
  return node;
}

function tag(name, attributes = {}, ...inside) {
  const node = document.createElement(name);
  for (const key in attributes) key in node ? (node[key] = attributes[key]) : node.setAttribute(key, attributes[key]);
  node.append(...inside);
  return node;
}

const url = (path, extra = "") => `${path}?token=${encodeURIComponent(token)}${extra}`;
const show = (value) => (value === null ? "–" : String(+value.toPrecision(3)).replaceAll("-", "−"));
const say = (text) => { $("said").textContent = text; };

async function post(path, body = {}) {
  const answer = await fetch(path, { method: "POST", headers: { "X-Retrace-Token": token, "Content-Type": "application/json" }, body: JSON.stringify(body) });
  if (!answer.ok) trouble((await answer.json().catch(() => ({}))).error || "The server did not answer.");
  return answer.ok;
}

function trouble(text) {
  $("trouble").hidden = !text;
  $("trouble-text").textContent = text || "";
}

// ---- the file -----------------------------------------------------------------------------------------------------

function send(file) {
  if (!file || uploading) return;
  trouble("");
  const request = uploading = new XMLHttpRequest();
  request.open("POST", "upload");
  request.setRequestHeader("X-Retrace-Token", token);
  request.setRequestHeader("X-File-Name", encodeURIComponent(file.name));
  // what the server said meanwhile, such as that it reads the table, is shown now
  const over = () => { uploading = null; receive(state); render(); };
  request.upload.onprogress = (event) => working("Taking in the file", event.loaded / event.total, `${Math.round(event.loaded / 1e6)} of ${Math.round(event.total / 1e6)} MB`);
  request.onload = () => {
    let answer = {};
    try { answer = JSON.parse(request.responseText); } catch { answer = { error: "The server did not answer." }; }
    over();
    if (request.status !== 200) trouble(answer.error || "The file was not taken.");
  };
  request.onerror = () => { over(); trouble("The file could not be sent: is retrace app still running?"); };
  request.onabort = () => { over(); stopped("The file was not taken in; what had arrived is deleted."); };
  working("Taking in the file", 0, "");
  $("enough").hidden = true;
  request.send(file);
  render();
}

function stopped(text) {
  $("stopped").hidden = !text;
  $("stopped-text").textContent = text || "";
}

$("file").addEventListener("change", (event) => { send(event.target.files[0]); event.target.value = ""; });
for (const kind of ["dragover", "dragleave", "drop"]) document.addEventListener(kind, (event) => {
  event.preventDefault();
  $("zone").classList.toggle("over", kind === "dragover");
  if (kind === "drop") send(event.dataTransfer.files[0]);
});
for (const [name, label] of EXAMPLES) {
  const button = tag("button", { type: "button", textContent: label });
  button.addEventListener("click", () => { trouble(""); stopped(""); post("example", { name }); });
  $("examples").append(button);
}

// ---- working ------------------------------------------------------------------------------------------------------

function working(doing, fraction, left, elapsed) {
  if ($("doing").textContent !== doing) { $("doing").textContent = doing; say(doing); }
  if (fraction === null || fraction === undefined) $("bar").removeAttribute("value"); else $("bar").value = fraction;
  since = elapsed === undefined ? null : performance.now() - 1000 * elapsed;
  $("left").textContent = left || "";
  tick();
}

// Seconds go on between two reports.
let since = null;
function tick() { $("elapsed").textContent = since === null ? "" : `${Math.round((performance.now() - since) / 1000)} s so far.`; }
setInterval(() => { if (!$("working").hidden) tick(); }, 500);

$("stop").addEventListener("click", () => { if (uploading) uploading.abort(); else post("do/stop"); });
const ENOUGH = $("enough").textContent;
$("enough").addEventListener("click", () => { $("enough").disabled = true; $("enough").textContent = "Ending with what there is"; post("do/enough"); });
$("forget").addEventListener("click", () => post("do/forget"));

// ---- the table ----------------------------------------------------------------------------------------------------

function chosen() {
  const of = (role) => Object.keys(roles).filter((name) => roles[name] === role);
  return { subject: of("subject")[0] || null, slice: of("slice")[0] || null, time: of("time")[0] || null, variables: of("variable"), covariates: of("input"), group: of("group")[0] || null };
}

function drawTable() {
  const { table } = state;
  $("table-title").textContent = table.name;
  const guessed = table.columns.some((each) => each.role === "subject");
  $("table-lead").textContent = `${table.rows.toLocaleString("en")} rows, ${table.columns.length} columns. ` +
    (guessed ? "This is what they look like; change what is wrong." : "Which column says whose row it is? Nothing here looks like it.");
  $("sheets").hidden = !table.sheets;
  if (table.sheets) $("sheet").replaceChildren(...table.sheets.names.map((each) => new Option(each, each)));
  $("table-notes").textContent = table.notes.join(" ");
  $("table-notes").hidden = !table.notes.length;
  roles = Object.fromEntries(table.columns.map((each) => [each.name, each.role]));
  const body = $("columns").tBodies[0];
  body.replaceChildren(...table.columns.map((each) => {
    const select = tag("select", { ariaLabel: `What ${each.name} is` }, ...ROLES.map(([role, label]) => new Option(label, role, false, role === each.role)));
    const why = tag("td", { textContent: each.role === "none" && !each.reason ? "" : each.reason });
    const cells = `${each.kind}, ${each.distinct.toLocaleString("en")} different${each.missing ? `, ${each.missing < 0.01 ? "under 1" : Math.round(100 * each.missing)} % missing` : ""}: ${each.examples.join(", ")} …`;
    const row = tag("tr", { className: each.role }, tag("td", { textContent: each.name }), tag("td", {}, select), why, tag("td", { className: "cells", textContent: cells }));
    select.addEventListener("change", () => {
      roles[each.name] = select.value;
      why.textContent = select.value === each.role ? each.reason : "you said so";
      if (["subject", "slice", "time", "group"].includes(select.value)) [...body.rows].forEach((other, k) => {
        const name = table.columns[k].name, choice = other.querySelector("select");
        if (name !== each.name && choice.value === select.value) { choice.value = roles[name] = "none"; choice.dispatchEvent(new Event("change")); }
      });
      row.className = select.value;
      ready();
    });
    return row;
  }));
  const line = (cells, kind) => tag("tr", {}, ...cells.map((text) => tag(kind, { textContent: text })));
  $("head").replaceChildren(line(table.columns.map((each) => each.name), "th"), ...table.head.map((row) => line(row, "td")));
  ends([]);
  ready();
}

function ends(labels) {
  for (const id of ["first", "last"]) $(id).replaceChildren(new Option("not known", ""), ...labels.map((each) => new Option(each, each)));
}

// A button that cannot be pressed says why, in words and to the pointer.
function because(why) {
  $("why").textContent = why;
  for (const id of ["diagnose", "fit", "forget"]) $(id).title = $(id).disabled ? why : "";
}

function ready() {
  const { subject, slice, variables } = chosen();
  const why = !subject ? "Say first which column is the subject: whose row it is." : variables.length ? "" : "Say first which columns are variables: numbers that change within subjects.";
  for (const id of ["diagnose", "fit"]) $(id).disabled = Boolean(why);
  because(why);
  for (const node of document.querySelectorAll(".shared-only")) node.hidden = !slice;
}

$("diagnose").addEventListener("click", () => { trouble(""); stopped(""); post("do/diagnose", { roles: chosen() }); });
$("fit").addEventListener("click", () => {
  trouble(""); stopped("");
  post("do/fit", { roles: chosen(), options: { dt: $("dt").value, first: $("first").value, last: $("last").value, common_shocks: $("common-shocks").value, missing_covariates: $("missing-inputs").value, steps: $("steps").value } });
});
$("sheet").addEventListener("change", () => { trouble(""); stopped(""); post("do/sheet", { sheet: $("sheet").value }); });

function drawDiagnosis() {
  const { diagnosis } = state, marks = { good: "✓", caution: "◐", stop: "×" };
  $("diagnosis-lead").textContent = `${diagnosis.subjects.toLocaleString("en")} subjects, ${diagnosis.observations.toLocaleString("en")} observations, ${diagnosis.slices === null ? "each subject with its own order" : `${diagnosis.slices} slices in one order`}.`;
  $("findings").replaceChildren(...diagnosis.findings.map((each) => tag("li", { className: each.kind },
    tag("span", { className: "mark", ariaHidden: "true", textContent: marks[each.kind] }), `${each.sentence} ${each.advice}`)));
  if ($("first").options.length <= 1) ends(diagnosis.slice_labels);
}

// ---- the result ---------------------------------------------------------------------------------------------------

const SIGNS = { good: "✓", mixed: "◐", open: "?" };

function drawResult() {
  const { result } = state;
  const list = (texts) => tag("ul", {}, ...texts.map((text) => tag("li", { textContent: text })));
  $("verdicts").replaceChildren(...result.verdicts.map((each, k) => {
    const last = k === result.verdicts.length - 1, texts = [...each.sentences, ...(last ? result.cautions.map((text) => `Caution: ${text}`) : [])];
    const first = last ? 2 : 1, rest = texts.slice(first);
    return tag("article", { className: `card verdict ${each.standing}` },
      tag("p", { className: "question", textContent: each.question }),
      tag("h3", {}, tag("span", { className: "mark", ariaHidden: "true", textContent: last ? "→" : SIGNS[each.standing] }), each.answer),
      list(texts.slice(0, first)), ...(rest.length ? [tag("details", {}, tag("summary", { textContent: `${rest.length} more` }), list(rest))] : []));
  }));
  drawMoving(result);
  drawInputs(result);
  $("files").replaceChildren(...result.files.map((name) => tag("li", {}, tag("a", { href: url(`files/${name}`), download: name },
    tag("strong", { textContent: name }), name === "forecast.csv" ? FILES[name].replace("next", `next ${result.steps}`) : FILES[name]))));
  $("report").src = url("files/report.html", "&view=1#figures");
}

// Slices that move into order: every bead slides to its place, and the thread through the final order untangles.
let moving = [], moment = 0, frame = 0, wait = 0, seen = new IntersectionObserver(() => {});

function drawMoving(result, again = false) {
  const { moving: data } = result, open = result.direction === "open" && !result.cycle;
  $("moving-lead").textContent = (data.shared ? "Each bead is the mean of a slice over all subjects" : "Each bead is an observation of a subject, numbered as its rows were stored") +
    ", each variable on its own scale. They begin as they were stored." + (open && data.shared ? " The direction is open: beside it the same order run backwards, as likely." : "");
  $("legend").replaceChildren(...data.variables.map((name, k) => {
    const key = make("svg", { viewBox: "0 0 28 12", "aria-hidden": "true" });
    make("path", { d: "M1 6H27", class: `thread s${k % 6}` }, key);
    return tag("li", {}, key, name);
  }));
  $("moving").replaceChildren();
  const alone = data.groups.length === 1 && !(open && data.shared);
  $("moving").className = alone ? "row wide" : "row";
  moving = data.groups.flatMap((group) => (open && data.shared ? [false, true] : [false]).map((back) => beads(group, back, open && data.shared, alone)));
  const steps = data.groups[0].steps;
  $("moment").max = steps.length - 1;
  if (again) go(Math.min(moment, steps.length - 1), 0); else play();
}

function beads(group, back, both, alone) {
  const room = $("moving").clientWidth || 600, n = group.labels.length, named = n <= 16, flat = group.labels.every((each) => each.length <= 3);
  const width = Math.max(260, (alone || room < 816 ? room : room / 2) - 16), height = alone ? 320 : 250, left = 14, right = width - 14;
  const top = 14, bottom = height - (named ? (flat ? 50 : 76) : 38);
  const figure = tag("figure", {}), svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
  figure.append(tag("figcaption", { textContent: both ? (back ? "the other way round" : "as found") : group.label }), svg);
  $("moving").append(figure);
  const values = group.lines.flat().filter((v) => v !== null), low = Math.min(...values), high = Math.max(...values);
  const x = (position) => left + ((right - left) * (position + 0.5)) / n;
  const y = (value) => bottom - ((bottom - top) * (value - low)) / (high - low || 1);
  const turned = (order) => (back ? [...order].reverse() : order);
  const last = turned(group.steps[group.steps.length - 1].order);
  make("path", { d: `M${left} ${bottom + 8}H${right}`, class: "axis" }, svg);
  make("text", { x: right, y: height - 6, "text-anchor": "end", class: "soft" }, svg, "time →");
  const threads = group.lines.map((_, k) => make("path", { class: `thread s${k % 6}` }, svg));
  const dots = group.lines.map((line, k) => line.map((value) => (value === null ? null : make("circle", { r: n > 30 ? 2.5 : 4, cy: y(value), class: `bead f${k % 6}` }, svg))));
  const names = named ? group.labels.map((label) => make("text", { class: "soft", "text-anchor": flat ? "middle" : "end" }, svg, label.length > 12 ? label.slice(0, 11) + "…" : label)) : [];
  const places = (order) => { const at = Array(n); turned(order).forEach((a, k) => { at[a] = k; }); return at; };
  const put = (at) => {
    dots.forEach((line) => line.forEach((dot, a) => dot && dot.setAttribute("cx", x(at[a]))));
    names.forEach((name, a) => name.setAttribute("transform", `translate(${x(at[a]) + (flat ? 0 : 4)} ${bottom + (flat ? 24 : 18)})${flat ? "" : " rotate(-45)"}`));
    threads.forEach((thread, k) => {
      let d = "", pen = "M";
      for (const a of last) {
        if (group.lines[k][a] === null) continue;
        d += `${pen}${x(at[a]).toFixed(1)} ${y(group.lines[k][a]).toFixed(1)}`;
        pen = "L";
      }
      thread.setAttribute("d", d);
    });
  };
  // As stored both stand alike: what is reversed is the answer, not the data.
  const stored = group.steps[0].order, at = group.steps.map((step, k) => (k === 0 ? stored.map((_, a) => stored.indexOf(a)) : places(step.order)));
  put(at[0]);
  svg.setAttribute("aria-label", `${group.label}: ${n} beads in the order ${last.map((a) => group.labels[a]).slice(0, 30).join(", ")}${n > 30 ? ", …" : ""}.`);
  return { at, put, steps: group.steps };
}

function go(to, seconds, then) {
  cancelAnimationFrame(frame);
  clearTimeout(wait);
  const from = moving.map((each) => each.now || each.at[0]), begin = performance.now();
  moment = to;
  $("moment").value = to;
  const label = moving[0].steps[Math.min(to, moving[0].steps.length - 1)].label;
  $("moment").setAttribute("aria-valuetext", label);
  $("moment-text").textContent = label;
  const step = (time) => {
    const t = seconds === 0 ? 1 : Math.min(1, (time - begin) / (1000 * seconds)), ease = t < 0.5 ? 4 * t ** 3 : 1 - (2 - 2 * t) ** 3 / 2;
    moving.forEach((each, k) => {
      const goal = each.at[Math.min(to, each.at.length - 1)];
      each.now = goal.map((place, a) => from[k][a] + (place - from[k][a]) * ease);
      each.put(each.now);
    });
    if (t < 1) frame = requestAnimationFrame(step); else if (then) then();
  };
  if (seconds === 0) step(begin); else frame = requestAnimationFrame(step);
}

function play() {
  const last = moving[0].steps.length - 1;
  if (still.matches) return go(last, 0);
  const on = (k) => () => { if (k <= last) go(k, k === 1 ? 2 : 0.6, on(k + 1)); };
  go(0, 0);
  seen.disconnect();
  seen = new IntersectionObserver((all) => { if (all.some((each) => each.isIntersecting)) { seen.disconnect(); wait = setTimeout(on(1), 700); } }, { threshold: 0.3 });
  seen.observe($("moving"));
}

$("play").addEventListener("click", play);
let wide = innerWidth;
addEventListener("resize", () => { if (innerWidth !== wide && state.stage === "done") { wide = innerWidth; drawMoving(state.result, true); if (state.result.inputs) respond(state.result, state.result.inputs); } });
$("moment").addEventListener("input", (event) => go(+event.target.value, still.matches ? 0 : 0.5));

// ---- what if ------------------------------------------------------------------------------------------------------

function drawInputs(result) {
  const inputs = result.inputs;
  $("what-if").hidden = !inputs;
  if (!inputs) return;
  $("input").replaceChildren(...inputs.names.map((name, k) => new Option(name, k)));
  $("outcome").replaceChildren(...result.variables.map((name, k) => new Option(name, k)));
  const reach = () => {
    const most = inputs.reach[+$("input").value];
    Object.assign($("change"), { min: -most, max: most, step: most / 20, value: most });
  };
  reach();
  const draw = () => respond(result, inputs);
  $("input").onchange = () => { reach(); draw(); };
  $("outcome").onchange = $("change").oninput = draw;
  draw();
}

function respond(result, inputs) {
  const k = +$("input").value, v = +$("outcome").value, size = +$("change").value, texts = [];
  $("change-text").textContent = `${size >= 0 ? "+" : ""}${show(size)} ${inputs.names[k]}`;
  const lines = inputs.ways.map((way) => ["means", "low", "high"].map((each) => way[each] && way[each][k].map((row) => (row[v] === null ? null : size * row[v]))));
  const all = lines.flat(2).filter((each) => each !== null && Math.abs(each) < 1e12), low = Math.min(0, ...all), high = Math.max(0, ...all);
  $("responses").className = inputs.ways.length > 1 ? "row" : "row wide";
  $("responses").replaceChildren(...lines.map(([mean, one, two], w) => {
    const room = $("responses").clientWidth || 600, width = Math.max(260, (inputs.ways.length === 1 || room < 816 ? room : room / 2) - 16), height = 230, box = [62, width - 15, 12, 190], times = inputs.ways[w].times;
    const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
    const x = (t) => box[0] + ((box[1] - box[0]) * t) / (times[times.length - 1] || 1), y = (value) => box[3] - ((box[3] - box[2]) * (value - low)) / (high - low || 1);
    const trace = (values) => values.map((value, j) => `${j ? "L" : "M"}${x(times[j]).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    make("path", { d: `M${box[0]} ${y(0)}H${box[1]}`, class: "axis" }, svg);
    if (one) make("path", { d: `${trace(one)}${[...two].map((value, j) => `L${x(times[j]).toFixed(1)} ${y(value).toFixed(1)}`).reverse().join("")}z`, class: "band" }, svg);
    make("path", { d: trace(mean), class: "thread s0" }, svg);
    for (const value of [low, 0, high]) if (value === 0 || Math.abs(y(value) - y(0)) > 14) make("text", { x: box[0] - 6, y: y(value) + 4, "text-anchor": "end", class: "soft" }, svg, show(value));
    for (const t of [0, times[times.length - 1]]) make("text", { x: x(t), y: height - 22, "text-anchor": t ? "end" : "start", class: "soft" }, svg, `time ${show(t)}`);
    const end = mean.length - 1, between = one ? ` (95 %: ${show(Math.min(one[end], two[end]))} to ${show(Math.max(one[end], two[end]))})` : "";
    const text = `after a time of ${show(times[end])}, ${result.variables[v]} is moved by ${show(mean[end])}${between}`;
    texts.push(inputs.ways.length > 1 ? `${w ? "if time runs the other way, " : "in the order shown, "}${text}` : text);
    svg.setAttribute("aria-label", text);
    return tag("figure", {}, tag("figcaption", { textContent: inputs.ways.length > 1 ? (w ? "if time runs the other way" : "in the order shown") : `change of ${result.variables[v]}` }), svg);
  }));
  const said = texts.join("; ");
  $("response-text").textContent = said[0].toUpperCase() + said.slice(1) + ".";
}

// The report tells its height; nothing else is heard from it.
addEventListener("message", (event) => {
  const height = event.source === $("report").contentWindow && event.data && event.data.retraceHeight;
  if (Number.isFinite(height)) $("report").style.height = `${Math.min(Math.max(height, 300), 60000)}px`;
});

// ---- the state ----------------------------------------------------------------------------------------------------

function focus(id) { $(id).focus({ preventScroll: true }); $(id).scrollIntoView({ block: "start", behavior: still.matches ? "auto" : "smooth" }); }

function render() {
  const busy = uploading || ["reading", "diagnosing", "fitting"].includes(state.stage), known = Boolean(state.table && state.table.columns);
  $("drop").hidden = Boolean(busy) || state.stage === "done" || known;
  $("working").hidden = !busy;
  $("table").hidden = Boolean(uploading) || !known || state.stage === "fitting";
  $("diagnosis").hidden = !known || !state.diagnosis || busy || state.stage === "done";
  $("result").hidden = state.stage !== "done";
  for (const id of ["diagnose", "fit", "forget", "sheet"]) $(id).disabled = Boolean(busy);
  if (busy) because("Something is being computed: stop it, or wait for its end.");
  else if (known) ready();
}

function receive(next) {
  const before = state.stage;
  state = next;
  const name = JSON.stringify([state.table && state.table.name, state.table && state.table.rows, state.table && state.table.sheets]);
  if (state.table && state.table.columns && name !== drawnTable) { drawTable(); drawnTable = name; }
  if (!state.table) drawnTable = "";
  if (state.table && state.table.sheets && state.stage !== "reading") $("sheet").value = state.table.sheets.read;
  if (!uploading && ["reading", "diagnosing", "fitting"].includes(state.stage)) {
    const step = state.progress;
    working(step ? step.doing[0].toUpperCase() + step.doing.slice(1) : { reading: "Reading the table", diagnosing: "Looking", fitting: "Starting" }[state.stage],
      step && step.fraction, step ? step.left : "", step ? step.elapsed : undefined);
    $("enough").hidden = state.stage !== "fitting" || !step || step.fraction === null;
  }
  if (state.stage !== before) {
    $("enough").disabled = false;
    $("enough").textContent = ENOUGH;
    if (state.error) trouble(state.error);
    else if (before !== "empty" || state.stage !== "empty") trouble("");
    stopped(state.stopped && ["table", "empty"].includes(state.stage) ? (state.stage === "table" ? "Nothing was computed; the table is still here." : "The table was not read; what was taken in is deleted.") : "");
    if (state.diagnosis && state.stage === "diagnosed") drawDiagnosis();
    render();
    $("roles").open = state.stage !== "done";
    if (state.stage === "done") { drawResult(); focus("result-title"); say("Done. What was found is shown."); }
    else if (state.stage === "diagnosed") focus("diagnosis-title");
    else if (state.stage === "table") focus("table-title");
    else if (state.stage === "empty" && before !== "empty") focus("drop-title");
    else if (["reading", "diagnosing", "fitting"].includes(state.stage)) $("doing").focus({ preventScroll: true });
  }
}

const events = new EventSource(url("events"));
events.onmessage = (event) => receive(JSON.parse(event.data));
events.onerror = () => { if (events.readyState === EventSource.CLOSED || state.stage !== "empty") trouble("The connection is lost: is retrace app still running?"); };
events.onopen = () => { if ($("trouble-text").textContent.startsWith("The connection is lost")) trouble(""); };
render();
