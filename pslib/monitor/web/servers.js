// Cluster map: a tile a server, filled by its part of the largest, and what the chosen one has.

import { isSilent } from "./processes.js";
import { NONE, at, bytes, count, duration, facts, keyed, make, plural, put, rate, rows, set, share, table, times } from "./format.js";

const MEASURES = [
  ["rows", "Rows", (one) => one.rows, count, " rows"],
  ["memory", "Memory", (one) => one.memory_bytes, bytes, ""],
  ["requests", "Requests", (one) => one.requests_per_s, rate, ""],
  ["partitions", "Partitions", (one) => one.partitions, count, " partitions"],
];
const COLUMNS = [
  ["Server", ""], ["State", ""], ["Partitions", "number"], ["Rows", "number"], ["Memory", "number"],
  ["Requests", "number"], ["p50", "number"], ["p99", "number"], ["Queue", "number"], ["Log", "number"], ["Hot share", "number"],
];
const LARGE_TILES = 12;
const MOVES_SHOWN = 5;

/** Rank of the tile that an arrow key leads to; null for another key. */
function step(key, place, length, across) {
  const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across, Home: -place, End: length - 1 - place }[key];
  return by === undefined ? null : Math.min(length - 1, Math.max(0, place + by));
}

/** Makes the panel; returns what shows a state in it. */
export function servers() {
  let measure = MEASURES[0];
  let chosen = null;
  let last = null;
  const figures = make("dl.facts");
  const choice = make("div.choice", { role: "group", "aria-label": "Quantity of a tile's fill" });
  const map = make("div.map", { role: "group", "aria-label": "Servers; arrow keys go from one to the next" });
  const note = make("p.soft.note");
  const about = make("div.chosen", { hidden: true });
  const title = make("h3");
  const values = make("dl.facts");
  const moves = make("ul.moves");
  const more = make("details", {}, make("summary", {}, "As a table"));
  const frame = table("Servers", COLUMNS);
  frame.classList.add("tall");
  more.append(frame);
  more.addEventListener("toggle", () => last && show(last));
  about.append(title, values);
  at("servers_body").append(figures, choice, map, note, moves, about, more);
  for (const one of MEASURES) {
    const button = make("button", { type: "button", "aria-pressed": String(one === measure), onclick: () => pick(one) }, one[1]);
    button.measure = one;
    choice.append(button);
  }

  function pick(one) {
    measure = one;
    for (const button of choice.children) set(button, "aria-pressed", String(button.measure === one));
    if (last) show(last);
  }

  function choose(rank) {
    chosen = chosen === rank ? null : rank;
    if (last) show(last);
  }

  map.addEventListener("keydown", (event) => {
    const tiles = [...map.children];
    const place = tiles.indexOf(document.activeElement);
    if (place < 0) return;
    const top = tiles[0].offsetTop;
    const across = Math.max(1, tiles.filter((tile) => tile.offsetTop === top).length);
    const next = step(event.key, place, tiles.length, across);
    if (next === null) return;
    event.preventDefault();
    tiles.forEach((tile, number) => set(tile, "tabindex", number === next ? "0" : "-1"));
    tiles[next].focus();
  });

  /** Text of a large tile beside its figure. */
  function others(one) {
    const used = one.memory_limit_bytes ? `${share(one.memory_bytes / one.memory_limit_bytes)} of its memory` : bytes(one.memory_bytes);
    const lines = [measure[0] === "memory" ? `${count(one.rows)} rows` : used];
    if (measure[0] !== "requests") lines.push(`${count(one.requests_per_s)} requests/s`);
    lines.push(`p99 ${duration(one.request_p99_s)}`);
    return lines.filter((line) => !line.includes(NONE)).join("\n");
  }

  function showTiles(state, all, stateOf, moving) {
    const running = state.run?.state === "running";
    const largest = Math.max(1e-9, ...all.map((one) => measure[2](one) ?? 0));
    map.classList.toggle("large", all.length <= LARGE_TILES);
    keyed(
      map,
      all,
      (one) => one.rank,
      (one) => {
        const tile = make("button.tile", { type: "button", tabindex: map.children.length ? "-1" : "0" });
        tile.fill = make("span.fill");
        tile.rank = make("span.rank", {}, String(one.rank));
        tile.text = make("span.figure");
        tile.more = make("span.more");
        tile.mark = make("span.mark", { "aria-hidden": "true" });
        tile.append(tile.fill, tile.rank, tile.text, tile.more, tile.mark);
        tile.addEventListener("click", () => choose(one.rank));
        return tile;
      },
      (tile, one) => {
        const value = measure[2](one);
        const known = stateOf.get(one.rank) ?? "absent";
        const now = known === "live" && !running ? "ended" : known;
        const moves = moving.has(one.rank);
        tile.fill.style.setProperty("height", `${Math.round((100 * (value ?? 0)) / largest)}%`);
        put(tile.text, `${measure[3](value)}${measure[4]}`);
        put(tile.more, others(one));
        put(tile.mark, known === "live" ? (moves ? "→" : "") : known === "silent" ? "!" : "✕");
        set(tile, "data-state", known);
        set(tile, "data-moves", moves || null);
        set(tile, "aria-pressed", String(chosen === one.rank));
        set(tile, "aria-label", `server ${one.rank}: ${now}, ${measure[1].toLowerCase()} ${measure[3](value)}${moves ? ", a partition is moving" : ""}`);
        set(tile, "title", `server ${one.rank}: ${now}\n${count(one.rows)} rows, ${bytes(one.memory_bytes)}`);
      },
    );
    if (!map.querySelector('[tabindex="0"]') && map.firstElementChild) set(map.firstElementChild, "tabindex", "0");
  }

  function showChosen(all, stateOf) {
    const one = all.find((server) => server.rank === chosen);
    about.hidden = !one;
    if (!one) return;
    const limit = one.memory_limit_bytes ? ` of ${bytes(one.memory_limit_bytes)}` : "";
    put(title, `Server ${one.rank}, ${stateOf.get(one.rank) ?? "absent"}`);
    facts(values, [
      ["Partitions", count(one.partitions)],
      ["Rows", count(one.rows)],
      ["Memory", bytes(one.memory_bytes) + limit],
      ["Requests", rate(one.requests_per_s)],
      ["Answered p50", duration(one.request_p50_s)],
      ["Answered p99", duration(one.request_p99_s)],
      ["Queue", count(one.queue)],
      ["Log", bytes(one.log_bytes)],
      ["A restart would replay", bytes(one.log_replay_bytes)],
      ["On the hottest 1 %", share(one.hot_share)],
    ]);
  }

  function show(state) {
    last = state;
    const all = Array.isArray(state.servers) ? state.servers : [];
    const running = state.run?.state === "running";
    const own = (state.processes ?? []).filter((one) => one.role === "server");
    const stateOf = new Map(own.map((one) => [one.rank, running && isSilent(one) ? "silent" : one.state]));
    const going = state.partitions?.moving ?? [];
    const moving = new Set(going.flatMap(([, from, to]) => [from, to]));
    const live = all.filter((one) => ["live", "silent"].includes(stateOf.get(one.rank))).length;
    const imbalance = state.imbalance ?? {};
    facts(figures, [
      running && all.length > 0 && ["Live", `${count(live)} of ${count(all.length)}`, live < all.length ? "bad" : ""],
      ["Imbalance of rows", times(imbalance.rows)],
      ["of bytes", times(imbalance.bytes)],
      ["of requests", times(imbalance.requests)],
    ]);
    showTiles(state, all, stateOf, moving);
    put(note, all.length ? `Fill: ${measure[1].toLowerCase()} as a share of the largest server's. Imbalance: largest over mean.` : "No server has joined yet.");
    const told = going.slice(0, MOVES_SHOWN).map(([partition, from, to]) => `partition ${partition}: server ${from} → server ${to}`);
    if (going.length > MOVES_SHOWN) told.push(`and ${plural(going.length - MOVES_SHOWN, "more partition")}`);
    keyed(moves, told, (text) => text, (text) => make("li", {}, text), () => undefined);
    showChosen(all, stateOf);
    if (!more.open) return;
    rows(frame, all, (one) => one.rank, COLUMNS, (one) => [
      String(one.rank), stateOf.get(one.rank) ?? NONE, count(one.partitions), count(one.rows), bytes(one.memory_bytes),
      rate(one.requests_per_s), duration(one.request_p50_s), duration(one.request_p99_s), count(one.queue),
      bytes(one.log_bytes), share(one.hot_share),
    ]);
  }
  return show;
}
