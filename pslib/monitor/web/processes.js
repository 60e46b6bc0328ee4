// Table of all processes, the troubled ones first, with a filter; hundreds are collapsed to the first rows.

import { NONE, ago, at, bytes, count, keyed, make, plural, put, rate, set } from "./format.js";
import { bar } from "./time_bar.js";

const SHOWN = 12;
const ROLES = ["coordinator", "trainer", "server"];
const COLUMNS = [
  ["Process", ""], ["State", ""], ["Heard", "number heard"], ["Where", "where"], ["Rate", "number"], ["Memory", "number rss"],
  ["Time", "time_cell"], ["Waits for", "waits"], ["", ""],
];
const KINDS = { live: "live", lost: "bad", left: "quiet", absent: "quiet", ended: "quiet", silent: "warn" };

const SILENT_S = 3;
export const isSilent = (one) => one.state === "live" && one.silent_s >= SILENT_S;
const trouble = (one) => (one.state === "lost" ? 2 : troubled(one) ? 1 : 0);
export const troubled = (one) => one.state === "lost" || one.straggler || isSilent(one) || (one.waits ?? []).length > 0;

const text = (one) =>
  `${one.role} ${one.rank} ${one.state} ${one.where} ${one.address} ${(one.waits ?? []).join(" ")} ${one.straggler ? "straggler" : ""}`;

function order(one, other) {
  return trouble(other) - trouble(one) || ROLES.indexOf(one.role) - ROLES.indexOf(other.role) || one.rank - other.rank;
}

/** Makes the panel; `dump` shows the stacks of a process. Returns what shows a state in it. */
export function processes(dump) {
  let last = null;
  let all = false;
  const words = make("input", { type: "search", placeholder: "Filter by name, host, state", "aria-label": "Filter processes" });
  const role = make("select", { "aria-label": "Processes shown" });
  for (const [value, name] of [["", "All processes"], ["trainer", "Trainers"], ["server", "Servers"], ["troubled", "With a problem"]]) {
    role.append(make("option", { value }, name));
  }
  const found = make("span.soft", { role: "status" });
  const more = make("button", { type: "button", onclick: () => { all = !all; show(last); } });
  const heads = COLUMNS.map(([name, kind]) => make("th", { scope: "col", role: "columnheader", class: kind }, name || make("span.unseen", {}, "Stacks")));
  const body = make("tbody", { role: "rowgroup" });
  const whole = make(
    "table.processes",
    { role: "table", "aria-label": "Processes" },
    make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...heads)),
    body,
  );
  const frame = make("div.scroll", { tabindex: "0", role: "group", "aria-label": "Processes" }, whole);
  at("processes_body").append(make("div.line.filters", {}, make("div.tools", {}, role, words), found), frame, more);
  role.addEventListener("change", () => last && show(last));
  words.addEventListener("input", () => last && show(last));

  function create(one) {
    const name = `${one.role} ${one.rank}`;
    const row = make("tr", { role: "row" });
    row.state = make("span.tag");
    row.slow = make("span.tag.warn", { hidden: true }, "straggler");
    row.heard = make("td.number.heard", { role: "cell" });
    row.where = make("td.where", { role: "cell" });
    row.rate = make("td.number.rate", { role: "cell" });
    row.memory = make("td.number.rss", { role: "cell" });
    row.bar = bar();
    row.waits = make("td.waits", { role: "cell" });
    row.stacks = make("button.small", { type: "button", "aria-label": `Stacks of ${name}`, onclick: () => dump(one.role, one.rank, row.stacks) }, "Stacks");
    row.append(
      make("th", { scope: "row", role: "rowheader" }, one.role === "coordinator" ? one.role : name),
      make("td.state", { role: "cell" }, row.state, " ", row.slow), row.heard, row.where, row.rate, row.memory,
      make("td.time_cell", { role: "cell" }, row.bar), row.waits, make("td.do", { role: "cell" }, row.stacks),
    );
    return row;
  }

  function update(row, one, running, servers) {
    const now = one.state !== "live" ? one.state : !running ? "ended" : isSilent(one) ? "silent" : "live";
    put(row.state, now);
    row.state.className = `tag ${KINDS[now] ?? "info"}`;
    row.slow.hidden = !one.straggler;
    put(row.heard, running && (one.state === "live" || one.state === "lost") ? ago(one.silent_s) : NONE);
    put(row.where, one.where);
    set(row.where, "title", one.address);
    const served = servers.get(one.rank)?.requests_per_s;
    const speed = one.role === "trainer" ? rate(one.examples_per_s) : one.role === "server" ? (served == null ? NONE : `${count(served)} req/s`) : "";
    put(row.rate, one.state === "lost" ? NONE : speed);
    put(row.memory, bytes(one.rss_bytes));
    row.bar.hidden = !one.time || one.state === "lost";
    row.bar.show(one.time);
    put(row.waits, (one.waits ?? []).join("; "));
    row.stacks.disabled = !(running && one.state === "live");
  }

  function show(state) {
    last = state;
    const wanted = words.value.trim().toLowerCase();
    const matching = (state.processes ?? [])
      .filter((one) => !role.value || (role.value === "troubled" ? troubled(one) : one.role === role.value))
      .filter((one) => text(one).toLowerCase().includes(wanted))
      .sort(order);
    const shown = all ? matching : matching.slice(0, SHOWN);
    const running = state.run?.state === "running";
    const servers = new Map((state.servers ?? []).map((one) => [one.rank, one]));
    keyed(body, shown, (one) => `${one.role} ${one.rank}`, create, (row, one) => update(row, one, running, servers));
    frame.classList.toggle("tall", all);
    const live = matching.filter((one) => one.state === "live").length;
    const known = running ? `${count(live)} of ${count(matching.length)} live` : plural(matching.length, "process", "processes");
    put(found, matching.length ? known : "no process matches");
    more.hidden = matching.length <= SHOWN;
    put(more, all ? `Show the first ${SHOWN}` : `Show all ${count(matching.length)}`);
    set(more, "aria-expanded", String(all));
  }
  return show;
}
