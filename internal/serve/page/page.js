
"use strict";
// Asks for the node every two seconds, and sooner after an event; follows the events. All text is set as
// text: nothing that a rank says becomes markup.

const $ = (id) => document.getElementById(id);
const shown = { ranks: new Map(), events: 0, lastID: "" };
const maxEvents = 60, every = 2000;
let token = sessionStorage.getItem("ebb-token") || "";

function make(tag, name, text) {
  const e = document.createElement(tag);
  if (name) e.className = name;
  if (text !== undefined) e.textContent = text;
  return e;
}

function scaled(bytes, base, units) {
  let n = bytes, u = 0;
  while (n >= base && u < units.length - 1) { n /= base; u++; }
  return (u === 0 ? String(n) : n.toFixed(n < 10 ? 2 : n < 100 ? 1 : 0)) + " " + units[u];
}
const binary = (b) => scaled(b, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
const decimal = (b) => scaled(b, 1000, ["B", "kB", "MB", "GB", "TB"]);
const seconds = (s) => (s < 10 ? s.toFixed(2) : s < 100 ? s.toFixed(1) : Math.round(s)) + " s";
const rate = (bytes, s) => s > 0 ? (bytes / s / 1e9).toFixed(2) + " GB/s" : "";
const plural = (n, one) => n + " " + one + (n === 1 ? "" : "s");
const shortName = (e) => e.rank ? [e.role || "-", e.cell || "-", e.rank].join("/") : "pid " + e.pid;

async function ask(path) {
  const r = await fetch(path, { headers: token ? { Authorization: "Bearer " + token } : {}, cache: "no-store" });
  if (r.status === 401) throw Object.assign(new Error("token"), { token: true });
  const body = await r.json();
  if (!r.ok) throw new Error(body.error ? body.error.message : "status " + r.status);
  return body;
}

function connection(state, text) {
  $("link").className = state;
  $("link").textContent = text;
}

// demand shows the question for the token.
function demand() {
  $("ask").hidden = false;
  $("node").hidden = true;
  connection("", "token needed");
}
$("ask").addEventListener("submit", (e) => {
  e.preventDefault();
  token = $("token").value.trim();
  sessionStorage.setItem("ebb-token", token);
  $("token").value = "";
  refresh();
  follow();
});

const tiers = [["device", "on the device"], ["host", "in host memory"], ["disk", "on disk"], ["skipped", "zero or unused"], ["discarded", "given up"]];

// fill makes the parts of a bar; whole is what its full width stands for.
function fill(bar, bytes, whole) {
  while (bar.children.length < tiers.length) bar.append(make("i", tiers[bar.children.length][0]));
  tiers.forEach(([tier], i) => { bar.children[i].style.width = whole > 0 ? 100 * bytes[tier] / whole + "%" : "0"; });
  bar.title = tiers.filter(([t]) => bytes[t] > 0).map(([t, words]) => binary(bytes[t]) + " " + words).join(", ");
}
const sum = (bytes) => tiers.reduce((n, [tier]) => n + bytes[tier], 0);

// headline is the state of the node in words.
function headline(r) {
  if (r.total === 0) return ["No rank is running", "ranks of ebb run and ebb exec appear here"];
  const parts = [];
  const note = (n, words) => { if (n > 0) parts.push(n + " " + words); };
  note(r.moving, "moving");
  note(r.waiting, "waiting for a safe point");
  note(r.partly, "parked in part");
  note(r.empty, "without managed memory");
  note(r.silent, r.silent === 1 ? "gives no answer" : "give no answer");
  const whole = plural(r.total, "rank");
  if (r.parked === r.total) return ["All parked", whole];
  if (r.resident === r.total) return ["All on the device", whole];
  if (r.parked > 0) { note(r.resident, "on the device"); return [r.parked + " of " + whole + " parked", parts.join(", ")]; }
  if (r.resident > 0) return [r.resident + " of " + whole + " on the device", parts.join(", ")];
  return [whole, parts.join(", ")];
}

function showNode(n) {
  $("host").textContent = n.host;
  $("version").textContent = "ebb " + n.version;
  document.title = n.host + " – ebb";
  const [text, more] = headline(n.ranks);
  $("headline").textContent = text;
  if (more) $("headline").append(make("small", "", more));
  fill($("total"), n.bytes, sum(n.bytes));
  const list = [];
  for (const [tier, words] of tiers) {
    if ((tier === "skipped" || tier === "discarded") && n.bytes[tier] === 0) continue;
    const name = make("dt");
    name.append(make("i", tier), words);
    const value = make("dd", "", binary(n.bytes[tier]));
    value.append(make("small", "", n.bytes[tier] > 0 ? decimal(n.bytes[tier]) : "\u00a0"));
    const both = make("div");
    both.append(name, value);
    list.push(both);
  }
  for (const [words, last] of [["last pauses", n.last_pause], ["last resumes", n.last_resume]]) {
    if (last.ranks === 0) continue;
    const both = make("div");
    const value = make("dd", "", seconds(last.seconds_max));
    value.append(make("small", "", binary(last.bytes) + " on " + plural(last.ranks, "rank")));
    both.append(make("dt", "", words), value);
    list.push(both);
  }
  $("tiers").replaceChildren(...list);
  const faults = n.faults.map((f) => {
    const li = make("li");
    li.append(make("b", "", f.rank), " " + f.message);
    return li;
  });
  if (n.error) faults.push(make("li", "", "not looked at: " + n.error));
  if (n.events_lost > 0) faults.push(make("li", "", plural(n.events_lost, "event") + " did not arrive"));
  $("faults").replaceChildren(...faults);
  $("faults").hidden = faults.length === 0;
}

function last(words, o) {
  const span = make("span");
  if (!o) return span;
  span.append(words + " ");
  if (o.error) { span.append(make("b", "", "failed")); return span; }
  span.append(make("b", "", seconds(o.seconds)), " · " + binary(o.bytes) + " · " + rate(o.bytes, o.seconds));
  return span;
}

// row is the element of a rank, made at its first showing.
function row(id) {
  let r = shown.ranks.get(id);
  if (r) return r;
  r = { li: make("li"), who: make("div", "who"), state: make("span", "state"), bar: make("div", "bar"), pace: make("b"),
    text: make("small"), last: make("div", "last"), why: make("p", "why") };
  const gauge = make("div", "gauge"), memory = make("div", "memory");
  gauge.append(r.bar, r.pace);
  memory.append(gauge, r.text);
  r.li.append(r.who, r.state, memory, r.last, r.why);
  shown.ranks.set(id, r);
  return r;
}

function showRanks(page) {
  const most = Math.max(...page.ranks.map((r) => sum(r.bytes)), 1);
  const seen = new Set();
  const order = page.ranks.map((r) => {
    const id = r.pid + " " + (r.started || "");
    seen.add(id);
    const e = row(id), o = r.operation;
    e.pid = r.pid;
    const name = shortName(r);
    e.who.replaceChildren(name, make("small", "", [r.job, r.rank ? "pid " + r.pid : ""].filter(Boolean).join(" · ")));
    e.who.title = r.name + (r.device ? " on " + r.device : "");
    e.state.className = "state " + r.state;
    e.state.textContent = o && !o.waiting && o.total_bytes > 0 ? (o.operation === "pause" ? "parking " : "resuming ") + Math.floor(100 * o.bytes / o.total_bytes) + " %"
      : { resident: "resident", silent: "no answer", partly: "partly parked" }[r.state] || r.state;
    e.pace.style.width = o && o.total_bytes > 0 ? 100 * o.bytes / o.total_bytes * sum(r.bytes) / most + "%" : "0";
    fill(e.bar, r.bytes, most);
    e.text.textContent = tiers.filter(([t]) => r.bytes[t] > 0).map(([t, words]) => binary(r.bytes[t]) + " " + words).join(" · ")
      || (r.state === "silent" ? "" : "no managed memory");
    e.last.replaceChildren(last("pause", r.last_pause), last("resume", r.last_resume));
    e.why.textContent = r.error || "";
    e.why.hidden = !r.error;
    return e.li;
  });
  for (const id of shown.ranks.keys()) if (!seen.has(id)) shown.ranks.delete(id);
  $("ranks").replaceChildren(...order);
  const left = page.total - page.ranks.length;
  $("more").textContent = left > 0 ? "and " + left + " more: ebb status lists all" : "";
  $("more").hidden = left <= 0;
}

let timer = 0, asking = false, again = false;
async function refresh() {
  if (asking) { again = true; return; }
  asking = true;
  clearTimeout(timer);
  try {
    const [node, ranks] = await Promise.all([ask("/v1/node"), ask("/v1/ranks?limit=256")]);
    $("ask").hidden = true;
    $("node").hidden = false;
    showNode(node);
    showRanks(ranks);
    connection("live", "live");
  } catch (e) {
    if (e.token) { demand(); asking = false; return; }
    connection("lost", e instanceof TypeError ? "no connection" : e.message);
  }
  asking = false;
  timer = setTimeout(refresh, again ? 300 : document.hidden ? 10 * every : every);
  again = false;
}
function soon() { clearTimeout(timer); timer = setTimeout(refresh, 150); }
document.addEventListener("visibilitychange", () => { if (!document.hidden) soon(); });

// told is an event in words and its kind, or null where it is not worth a line.
function told(e) {
  const o = e.outcome || {};
  switch (e.event) {
    case "start": return ["", "started"];
    case "asked": return ["wait", "a " + (e.operation || "pause") + " was asked for and waits for a safe point"];
    case "withdraw": return ["wait", (e.operation || "pause") + " withdrawn" + (e.error ? ": " + e.error : "")];
    case "begin": return [e.operation, e.operation + " begins" + (e.total_bytes ? ": " + binary(e.total_bytes) : "") + (e.tags ? " of " + e.tags.join(", ") : "")];
    case "end": {
      if (e.error || o.error) return ["bad", e.operation + " failed: " + (e.error || o.error)];
      const s = o.seconds || e.seconds || 0, bytes = o.bytes || e.bytes || 0;
      const skipped = (o.skipped_zero_bytes || 0) + (o.skipped_same_bytes || 0) + (o.skipped_unused_bytes || 0);
      return [e.operation, [(e.operation === "pause" ? "paused " : "resumed ") + binary(bytes) + " in " + seconds(s), rate(bytes, s),
        skipped > 0 ? binary(skipped) + " not moved" : ""].filter(Boolean).join(" · ")];
    }
    case "lost": return ["bad", plural(e.lost, "event") + " did not arrive"];
    case "exit": return [e.error ? "bad" : "", "ended" + (e.error ? ": " + e.error : "")];
  }
  return null;
}

function showEvent(e) {
  if (e.event === "progress") {
    for (const r of shown.ranks.values()) if (r.pid === e.pid && e.total_bytes > 0) {
      r.state.className = "state moving";
      r.state.textContent = (e.operation === "pause" ? "parking " : "resuming ") + Math.floor(100 * (e.bytes || 0) / e.total_bytes) + " %";
    }
  }
  soon();
  const words = told(e);
  if (!words) return;
  const li = make("li", words[0] + " new");
  const time = make("time", "", new Date(e.time).toLocaleTimeString("en-GB"));
  time.dateTime = e.time;
  li.append(time, make("span", "of", e.pid ? shortName(e) : ""), make("span", "what", words[1]));
  $("events").prepend(li);
  while ($("events").children.length > maxEvents) $("events").lastChild.remove();
  $("quiet").hidden = true;
}

// follow reads the stream of events with fetch, since an EventSource sends no token.
let following = false;
async function follow() {
  if (following) return;
  following = true;
  try {
    const headers = { Accept: "text/event-stream" };
    if (token) headers.Authorization = "Bearer " + token;
    if (shown.lastID) headers["Last-Event-ID"] = shown.lastID;
    const r = await fetch(shown.lastID ? "/v1/events" : "/v1/events?recent=" + maxEvents, { headers, cache: "no-store" });
    if (r.status === 401) { following = false; return; }
    if (!r.ok) throw new Error("status " + r.status);
    const text = r.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await text.read();
      if (done) break;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        let data = "";
        for (const line of part.split("\n")) {
          if (line.startsWith("id: ")) shown.lastID = line.slice(4);
          if (line.startsWith("data: ")) data = line.slice(6);
        }
        if (data) showEvent(JSON.parse(data));
      }
    }
  } catch { /* the connection: tried again */ }
  following = false;
  setTimeout(follow, every);
}

refresh();
follow();
