// The page: takes states from the server as they come, shows them, and says when none come.

import { chart, drawAll, recolour } from "./charts.js";
import { ago, at, bytes, count, duration, facts, fixed, make, put, rate, set, share } from "./format.js";
import { panels } from "./panels.js";

const SILENT_S = 12;  // two beats of the server, and a little
const LATE_S = 3;
const RETRY_S = 2;
const SAMPLES_S = 10;
const ANNOUNCED = new Set(["silent", "lost", "back", "failed", "fenced", "left"]);

let state = null;
let latest = null;
let heard = 0;
let told = 0;
let samples = null;
let fetched = -Infinity;
let events = null;
let connected = false;
let shown = null;
let drawing = false;

const clock = () => performance.now() / 1000;

/** Unix time of the run's machine; of this one for a run that has ended. */
function now() {
  if (!state) return Date.now() / 1000;
  return state.run?.state === "running" ? state.now_s + clock() - heard : Date.now() / 1000;
}

function announce(text) {
  put(at("live"), text);
}

// --- connection

function connect() {
  events?.close();
  events = new EventSource("/api/events");
  events.addEventListener("state", (event) => take(JSON.parse(event.data)));
  events.addEventListener("beat", () => alive());
  events.onerror = () => {
    if (events.readyState === EventSource.CLOSED) setTimeout(connect, RETRY_S * 1000);
    lost();
  };
}

function alive() {
  told = clock();
  if (connected) return;
  connected = true;
  at("offline").hidden = true;
  document.documentElement.classList.remove("stale");
  announce("Connected");
}

function lost() {
  const first = connected;
  connected = false;
  showLink();
  if (first) announce("The connection is lost; trying again");
}

function showLink() {
  const link = at("link");
  const running = state?.run?.state === "running";
  if (connected) {
    put(link, running ? (clock() - heard < LATE_S ? "live" : `live, last news ${ago(clock() - heard)}`) : "from the run's files");
    link.className = "link good";
    return;
  }
  const again = `pslib ui ${state?.run?.folder ?? "RUN"}`;
  const over = state && !running;
  link.className = over ? "link soft" : "link bad";
  put(link, over ? "over" : "disconnected");
  document.documentElement.classList.toggle("stale", !over);
  const box = at("offline");
  box.hidden = false;
  box.className = over ? "banner info" : "banner warn";
  if (over) put(box, `The run is over, and this is its last state. See it again with: ${again}`);
  else if (!state) put(box, "No connection to the run. Trying again.");
  else put(box, `No connection to the run: what is shown is ${duration(clock() - heard)} old. Trying again. If the run has ended: ${again}`);
}

function take(next) {
  const before = state;
  state = next;
  if (next.run?.state === "running") latest = next;
  heard = clock();
  alive();
  if (before) news(before, next);
  if (clock() - fetched > SAMPLES_S) fetchSamples();
  draw();
}

function news(before, next) {
  const last = Math.max(0, ...(before.events ?? []).map((one) => one.number));
  const fresh = (next.events ?? []).filter((one) => one.number > last && ANNOUNCED.has(one.kind));
  const lines = fresh.slice(-3).map((one) => one.text);
  if (before.run?.state !== next.run?.state) lines.push(`The run is ${next.run?.state}`);
  if (lines.length) announce(lines.join(". "));
}

async function fetchSamples() {
  fetched = clock();
  try {
    const answer = await fetch("/api/samples");
    if (answer.ok) samples = await answer.json();
    draw();
  } catch {
    fetched = -Infinity;  // with the next state
  }
}

// --- showing

function draw() {
  if (drawing || document.hidden) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    if (!state) return;
    showHead();
    shown(state);
    age();
    if (samples) drawAll(withPresent(samples));
    if (samples && !document.body.dataset.ready) {
      document.body.dataset.ready = "yes";
      performance.mark("shown");
    }
  });
}

/** The samples and the last state of the running run, so that curves go on between two requests, and to its end. */
function withPresent({ columns, rows }) {
  if (!latest) return { columns, rows };
  const { run, traffic, servers } = latest;
  const present = {
    seconds: run.seconds, examples: run.examples, examples_per_s: run.examples_per_s, loss: run.loss, auc: run.auc,
    calibration: run.calibration, staleness: traffic?.staleness_mean, bytes_in_flight: traffic?.bytes_in_flight,
    ack_p99_s: traffic?.ack_p99_s,
    rows: sum(servers, "rows"), memory_bytes: sum(servers, "memory_bytes"),
  };
  const last = rows.at(-1);
  const place = columns.indexOf("seconds");
  if (last && last[place] >= run.seconds) return { columns, rows };
  return { columns, rows: [...rows, columns.map((name) => present[name] ?? null)] };
}

const sum = (all, name) => (all?.length ? all.reduce((total, one) => total + (one[name] ?? 0), 0) : null);

const STATES = { running: "info", ended: "good", failed: "bad" };

function showHead() {
  const run = state.run ?? {};
  const done = run.examples_total ? Math.min(1, run.examples / run.examples_total) : null;
  put(at("name"), run.name ?? "run");
  const pill = at("state");
  put(pill, run.phase && run.phase !== run.state ? `${run.state}: ${run.phase}` : run.state);
  pill.className = `pill ${STATES[run.state] ?? "info"}`;
  const members = (role) => (state.processes ?? []).filter((one) => one.role === role).length;
  put(at("about"), [run.model, `${count(members("server"))} servers`, `${count(members("trainer"))} trainers`].filter(Boolean).join(" · "));
  const bar = at("bar");
  if (done === null) bar.removeAttribute("value");
  else bar.value = done;
  put(bar, share(done));
  const epoch = run.epochs ? `${Math.min(run.epoch + (run.state === "running" ? 1 : 0), run.epochs)} of ${run.epochs}` : count(run.epoch);
  const stale = clock() - heard;
  facts(at("head"), [
    ["Done", done === null ? "–" : share(done)],
    ["Epoch", epoch],
    ["Examples", run.examples_total ? `${count(run.examples)} of ${count(run.examples_total)}` : count(run.examples)],
    ["Time", duration(run.seconds)],
    run.state === "running" && ["Left", duration(run.eta_s)],
    ["Checkpoint", savedText(run, stale)],
  ]);
  const error = at("error");
  if (error.hidden !== !run.error) error.hidden = !run.error;
  if (run.error) put(error, `Last error: ${run.error}`);
  put(at("foot"), `pslib ${run.pslib ?? ""} · cluster ${run.cluster_id ?? "–"} · ${run.folder ?? ""}`);
  document.title = `${done === null ? "" : `${share(done)} `}${run.name ?? "run"} – pslib`;
}

function savedText(run, stale) {
  const saved = run.checkpoint;
  if (!saved) return "none yet";
  const size = saved.bytes ? bytes(saved.bytes) : "saved";
  return run.state === "running" && Number.isFinite(saved.age_s) ? `${ago(saved.age_s + stale)}, ${size}` : size;
}

/** Renews the ages of all that has a time. */
function age() {
  const time = now();
  for (const node of document.querySelectorAll("[data-at]")) put(node, ago(time - Number(node.dataset.at)));
}

// --- stacks

let asked = null;

async function dump(role, rank, button) {
  asked = { role, rank, button };
  const dialog = at("stacks");
  put(at("stacks_title"), `Stacks of ${role} ${rank}`);
  put(at("stacks_text"), "asked; a process answers with its next heartbeat …");
  if (!dialog.open) dialog.showModal();
  let text;
  try {
    const answer = await fetch(`/api/stacks/${encodeURIComponent(role)}/${rank}`, { method: "POST" });
    const plain = await answer.json();
    text = plain.text ?? `not shown: ${plain.error}`;
  } catch {
    text = "not shown: no connection to the run";
  }
  if (asked?.role === role && asked?.rank === rank) put(at("stacks_text"), text);
}

function wireDialog() {
  const dialog = at("stacks");
  at("stacks_close").addEventListener("click", () => dialog.close());
  at("stacks_again").addEventListener("click", () => asked && dump(asked.role, asked.rank, asked.button));
  at("stacks_copy").addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(at("stacks_text").textContent);
      announce("Copied");
    } catch {
      getSelection().selectAllChildren(at("stacks_text"));
    }
  });
  dialog.addEventListener("close", () => {
    asked?.button?.focus();
    asked = null;
  });
}

// --- colours and panels

const THEMES = [["", "Auto", "as the system has them"], ["light", "Light", "light"], ["dark", "Dark", "dark"]];

function wireTheme() {
  const button = at("theme");
  const root = document.documentElement;
  const show = () => {
    const [, text, words] = THEMES.find(([name]) => name === root.dataset.chosen);
    put(button, text);
    set(button, "aria-label", `${text}: colours ${words}; change`);
    recolour();
  };
  button.addEventListener("click", () => {
    const place = THEMES.findIndex(([name]) => name === root.dataset.chosen);
    const [next] = THEMES[(place + 1) % THEMES.length];
    globalThis.chooseTheme(next);
    try {
      localStorage.setItem("pslib-theme", next);
    } catch {
      // not kept
    }
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
  show();
}

function start() {
  history.replaceState(null, "", location.pathname + location.hash);  // without the token
  shown = panels(dump);
  for (const section of document.querySelectorAll("main section.card")) {
    at("nav").append(make("li", {}, make("a", { href: `#${section.id}` }, section.querySelector("h2").textContent)));
  }
  chart("training_charts", { title: "Examples/s", column: "examples_per_s", show: rate, tick: count, colour: "--c1" });
  chart("training_charts", { title: "Loss", column: "loss", show: fixed(4), tick: fixed(3), colour: "--c2" });
  chart("training_charts", { title: "AUC", column: "auc", show: fixed(4), tick: fixed(3), colour: "--c3" });
  chart("training_charts", { title: "Calibration", column: "calibration", show: fixed(3), tick: fixed(2), colour: "--c4" });
  const over = { over: "seconds", height: 104 };
  chart("traffic_charts", { title: "Staleness", column: "staleness", show: fixed(2), colour: "--c3", ...over });
  chart("traffic_charts", { title: "On their way", column: "bytes_in_flight", show: bytes, colour: "--c1", ...over });
  chart("traffic_charts", { title: "Acknowledged p99", column: "ack_p99_s", show: duration, colour: "--c2", ...over });
  chart("table_charts", { title: "Rows", column: "rows", show: count, colour: "--c1", ...over });
  chart("table_charts", { title: "Memory of tables", column: "memory_bytes", show: bytes, colour: "--c4", ...over });
  wireTheme();
  wireDialog();
  fetchSamples();
  connect();
  document.addEventListener("visibilitychange", draw);
  setInterval(() => {
    if (connected && clock() - told > SILENT_S) {
      lost();
      connect();
    }
    showLink();
    if (!document.hidden) age();
  }, 1000);
}

start();
