// Panels of the page: each is made once and then shows every new state.

import {
  NONE, ago, at, byteRate, bytes, count, duration, facts, fixed, keyed, make, plural, put, rate, rows, set, share,
  table, times,
} from "./format.js";
import { isSilent, processes, troubled } from "./processes.js";
import { servers } from "./servers.js";
import { bar, legend, mean } from "./time_bar.js";

const list = (value) => (Array.isArray(value) ? value : []);
const SOON = { checkpoint_s: 3600, memory_share: 0.9, imbalance: 1.5 };

/** Problems for an operator, the worst first: `[level, text, panel, name]`; a name has no figures. */
export function attention(state) {
  const found = [];
  const lost = list(state.processes).filter((one) => one.state === "lost");
  const say = (level, text, panel, name = text) => found.push([level, text, panel, name]);
  const missing = state.ledger?.missing ?? 0;
  if (missing > 0) say("bad", `${plural(missing, "acknowledged push", "acknowledged pushes")} missing`, "ledger", "missing");
  for (const one of lost.slice(0, 4)) say("bad", `${one.role} ${one.rank} is lost`, "processes");
  if (lost.length > 4) say("bad", `${count(lost.length - 4)} more processes are lost`, "processes", "more lost");
  for (const one of list(state.servers)) {
    const used = one.memory_limit_bytes ? one.memory_bytes / one.memory_limit_bytes : 0;
    if (used >= SOON.memory_share) say("bad", `server ${one.rank} has ${share(used)} of its memory limit`, "servers", `memory of ${one.rank}`);
  }
  for (const one of list(state.processes).filter(isSilent).slice(0, 4)) {
    say("warn", `${one.role} ${one.rank} is silent`, "processes");
  }
  const slow = list(state.processes).filter((one) => one.straggler);
  if (slow.length) {
    const names = slow.slice(0, 3).map((one) => `${one.role} ${one.rank}`).join(", ");
    say("warn", `${plural(slow.length, "straggler")}: ${names}${slow.length > 3 ? " …" : ""}`, "processes", "stragglers");
  }
  for (const [name, value] of Object.entries(state.imbalance ?? {})) {
    if (value >= SOON.imbalance) say("warn", `largest server has ${times(value)} the mean ${name}`, "servers", `imbalance of ${name}`);
  }
  if (state.run?.checkpoint?.age_s > SOON.checkpoint_s && state.run.state === "running") {
    say("warn", `last checkpoint ${ago(state.run.checkpoint.age_s)}`, "checkpoints", "old checkpoint");
  }
  const moving = list(state.partitions?.moving).length;
  if (moving) say("info", `${plural(moving, "partition")} on the move`, "servers", "moving");
  return found;
}

function showAttention(state) {
  const found = attention(state);
  const running = state.run?.state === "running";
  const items = found.length ? found : running ? [["good", "Nothing needs attention", null, "nothing"]] : [];
  at("attention").hidden = !items.length;
  keyed(
    at("attention_list"),
    items,
    ([level, , , name]) => `${level} ${name}`,
    ([level, , panel]) => {
      const mark = { bad: "✕", warn: "!", info: "→", good: "✓" }[level];
      const inner = panel ? make("a", { href: `#${panel}` }) : make("span");
      return make(`li.pill.${level}`, {}, make("span.mark", { "aria-hidden": true }, mark), inner);
    },
    (item, [, text]) => put(item.lastChild, text),
  );
}

// --- where time goes

const SHOWN_BARS = 6;

function showTime(body, state) {
  const groups = [];
  for (const role of ["trainer", "server"]) {
    const live = state.run?.state === "running" ? ["live"] : ["live", "left"];
    const own = list(state.processes).filter((one) => one.role === role && one.time && live.includes(one.state));
    if (!own.length) continue;
    const notable = own.filter(troubled);
    const few = own.length <= SHOWN_BARS ? own : notable.slice(0, SHOWN_BARS);
    const title = own.length > 1 ? `${role}s, mean of ${own.length}` : role;
    groups.push({ key: role, title, time: mean(own), whole: true });
    if (own.length > 1) {
      for (const one of few) {
        groups.push({ key: `${role} ${one.rank}`, title: `${role} ${one.rank}`, time: one.time, mark: one.straggler });
      }
    }
  }
  body.none.hidden = groups.length > 0;
  keyed(
    body.bars,
    groups,
    (one) => one.key,
    (one) => {
      const item = make(one.whole ? "li.whole" : "li");
      item.label = make("span");
      item.flag = make("span.tag.warn", { hidden: true }, "straggler");
      item.most = make("span.soft.number");
      item.bar = bar();
      item.append(make("div.line", {}, make("span", {}, item.label, " ", item.flag), item.most), item.bar);
      return item;
    },
    (item, one) => {
      put(item.label, one.title);
      item.flag.hidden = !one.mark;
      put(item.most, item.bar.show(one.time));
    },
  );
}

function makeTime() {
  const body = at("time_body");
  body.bars = make("ul.bars");
  body.none = make("p.soft", {}, "No process has reported yet.");
  body.append(legend(), body.bars, body.none);
  return (state) => showTime(body, state);
}

// --- events

const ALARMING = { lost: "bad", failed: "bad", silent: "warn", fenced: "warn", left: "quiet", back: "good", saved: "quiet" };
const EVENTS_SHOWN = 60;

function makeEvents() {
  const body = at("events_body");
  const words = make("input", { type: "search", placeholder: "Filter", "aria-label": "Filter events" });
  const items = make("ol.events", { tabindex: "0", "aria-label": "Events, the newest first" });
  const none = make("p.soft", {}, "None yet.");
  const more = make("p.soft");
  let last = null;
  body.append(words, none, items, more);
  const show = (state) => {
    last = state;
    const wanted = words.value.trim().toLowerCase();
    const all = list(state.events).toReversed();
    const found = all.filter((one) => `${one.kind} ${one.text}`.toLowerCase().includes(wanted));
    none.hidden = found.length > 0;
    put(none, all.length ? "None with this text." : "None yet.");
    items.hidden = !found.length;
    put(more, found.length > EVENTS_SHOWN ? `and ${count(found.length - EVENTS_SHOWN)} older ones; filter to see them` : "");
    keyed(
      items,
      found.slice(0, EVENTS_SHOWN),
      (one) => one.number,
      (one) => {
        const when = new Date(one.at_s * 1000);
        const time = make("time.soft", { datetime: when.toISOString(), title: when.toLocaleString(), "data-at": one.at_s });
        const kind = make(`span.tag.${ALARMING[one.kind] ?? "info"}`, {}, one.kind);
        return make("li", {}, make("div.line", {}, kind, time), make("p", {}, one.text));
      },
      () => undefined,
    );
  };
  words.addEventListener("input", () => last && show(last));
  return show;
}

// --- traffic, tables, keys, ledger, checkpoints

function makeTraffic() {
  const body = at("traffic_body");
  const figures = make("dl.facts.wide");
  const histogram = make("ul.histogram");
  const none = make("p.soft", {}, "No push has been measured yet.");
  const title = make("h3", {}, "Pushes by staleness");
  const charts = make("div.charts.three", { id: "traffic_charts" });
  body.append(make("div", {}, figures, title, histogram, none), charts);
  return (state) => {
    const traffic = state.traffic ?? {};
    facts(figures, [
      ["Staleness, mean", fixed(2)(traffic.staleness_mean)],
      ["Staleness, most", count(traffic.staleness_max)],
      ["On their way", bytes(traffic.bytes_in_flight)],
      ["Acknowledged p50", duration(traffic.ack_p50_s)],
      ["Acknowledged p99", duration(traffic.ack_p99_s)],
      ["Sent", byteRate(traffic.sent_per_s)],
      ["Received", byteRate(traffic.received_per_s)],
    ]);
    const counts = list(traffic.staleness_counts);
    const total = counts.reduce((sum, one) => sum + one, 0);
    const end = counts.findLastIndex((one) => one > 0) + 1;
    none.hidden = total > 0;
    keyed(
      histogram,
      counts.slice(0, end).map((one, steps) => ({ one, steps })),
      (item) => item.steps,
      (item) => {
        const row = make("li", {}, make("span.number", {}, String(item.steps)));
        row.fill = make("span.fill");
        row.text = make("span.number");
        row.append(make("span.track", { "aria-hidden": true }, row.fill), row.text);
        return row;
      },
      (row, item) => {
        row.fill.style.setProperty("width", `${total ? (100 * item.one) / Math.max(...counts) : 0}%`);
        put(row.text, `${count(item.one)} (${share(item.one / total)})`);
      },
    );
  };
}

const TABLE_COLUMNS = [
  ["Table", ""], ["Rows", "number"], ["Memory", "number"], ["A row", "number"], ["Limit", "number"],
  ["Admitted", "number"], ["Turned away", "number"], ["Evicted", "number"],
];

function makeTables() {
  const frame = table("Tables", TABLE_COLUMNS);
  at("tables_body").append(frame);
  return (state) =>
    rows(frame, list(state.tables), (one) => one.name, TABLE_COLUMNS, (one) => [
      one.name,
      count(one.rows),
      bytes(one.memory_bytes),
      bytes(one.bytes_per_row),
      one.memory_limit_bytes ? `${share(one.memory_bytes / one.memory_limit_bytes)} of ${bytes(one.memory_limit_bytes)}` : "none",
      count(one.admitted),
      count(one.turned_away),
      count(one.evicted),
    ]);
}

const FIELD_COLUMNS = [["Field", ""], ["Keys a batch", "number"], ["Distinct", "number"], ["Share", "number"]];

function makeKeys() {
  const figures = make("dl.facts");
  const frame = table("Keys of a batch by field", FIELD_COLUMNS);
  frame.classList.add("tall");
  at("keys_body").append(figures, frame);
  return (state) => {
    const keys = state.keys ?? {};
    facts(figures, [
      ["On the hottest 1 %", share(keys.hot_share)],
      ["From the cache", share(keys.cache_hit_share)],
      ["Distinct in a batch", share(keys.distinct_share)],
    ]);
    frame.hidden = !list(keys.fields).length;
    rows(frame, list(keys.fields), (one) => one.name, FIELD_COLUMNS, (one) => [
      one.name,
      count(one.keys_per_batch),
      count(one.distinct_per_batch),
      one.keys_per_batch ? share(one.distinct_per_batch / one.keys_per_batch) : NONE,
    ]);
  };
}

function makeLedger() {
  const figures = make("dl.ledger");
  const verdict = make("p.pill");
  at("ledger_body").append(figures, verdict);
  return (state) => {
    const ledger = state.ledger ?? {};
    const onWay = ledger.sent === null || ledger.applied === null ? null : Math.max(0, ledger.sent - ledger.applied);
    const whole = (value) => (Number.isFinite(value) ? value.toLocaleString("en") : NONE);
    facts(figures, [
      ["Sent", whole(ledger.sent)],
      ["Applied", whole(ledger.applied)],
      ["On their way", whole(onWay)],
      ["Sent again", whole(ledger.resent)],
      ["Missing", whole(ledger.missing), ledger.missing > 0 ? "bad" : ""],
    ]);
    const known = ledger.missing !== null && ledger.missing !== undefined;
    verdict.hidden = !known;
    verdict.className = ledger.missing > 0 ? "pill bad" : "pill good";
    put(verdict, ledger.missing > 0 ? "acknowledged pushes are lost" : "no acknowledged push is lost");
  };
}

const SAVED_COLUMNS = [
  ["Saved", ""], ["Kind", ""], ["Size", "number"], ["Took", "number"], ["Paused for", "number"], ["Path", "path"],
];

function makeCheckpoints() {
  const figures = make("dl.facts");
  const frame = table("Checkpoints, the newest first", SAVED_COLUMNS);
  frame.classList.add("tall");
  const none = make("p.soft", {}, "None yet.");
  at("checkpoints_body").append(figures, none, frame);
  return (state) => {
    const log = state.log ?? {};
    facts(figures, [
      ["Durability", log.durability ?? NONE],
      ["Log", bytes(log.bytes)],
      ["A restart would replay", bytes(log.replay_bytes)],
    ]);
    const saved = list(state.checkpoints).toReversed();
    frame.hidden = !saved.length;
    none.hidden = saved.length > 0;
    rows(frame, saved, (one) => `${one.at_s} ${one.path}`, SAVED_COLUMNS, (one) => [
      "",
      one.kind,
      bytes(one.bytes),
      duration(one.took_s),
      duration(one.pause_s),
      one.path?.split("/").slice(-2).join("/"),
    ]);
    saved.forEach((one, place) => {
      const cell = frame.body.children[place].children[0];
      set(cell, "data-at", one.at_s);
      set(cell, "title", new Date(one.at_s * 1000).toLocaleString());
      set(frame.body.children[place].lastElementChild, "title", one.path);
    });
  };
}

/** Makes all panels; returns what shows a state in them. */
export function panels(dump) {
  const all = [
    showAttention, makeTime(), servers(), makeEvents(), processes(dump), makeTraffic(), makeTables(), makeKeys(),
    makeLedger(), makeCheckpoints(),
  ];
  return (state) => all.forEach((show) => show(state));
}
