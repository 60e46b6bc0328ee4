// Bars of shares of time: what a process has done in the last seconds.

import { make, set, share } from "./format.js";

/** Parts of a bar: their names in a state, for people, and what they are. */
export const PARTS = [
  ["compute", "computing"],
  ["busy", "busy"],
  ["read", "reading"],
  ["wait_batch", "waits for a batch"],
  ["wait_rows", "waits for rows"],
  ["push", "push held back"],
  ["idle", "idle"],
];

/** Mean of the shares of some processes. */
export function mean(processes) {
  const sum = {};
  for (const one of processes) {
    for (const [name, value] of Object.entries(one.time)) sum[name] = (sum[name] ?? 0) + (value ?? 0) / processes.length;
  }
  return sum;
}

/** Makes a bar, whose `show` shows a time and returns its largest part in words. */
export function bar() {
  const parts = PARTS.map(([name]) => make(`span.part.${name}`));
  const whole = make("div.time", { role: "img" }, ...parts);
  whole.show = (time) => {
    const known = PARTS.map(([name, text]) => [name, text, time?.[name] ?? 0]);
    known.forEach(([, , value], place) => {
      const width = `${(100 * value).toFixed(1)}%`;
      if (parts[place].style.width !== width) parts[place].style.setProperty("width", width);
    });
    const told = known.filter(([, , value]) => value >= 0.005).sort((one, other) => other[2] - one[2]);
    const words = told.map(([, text, value]) => `${text} ${share(value)}`);
    set(whole, "aria-label", words.join(", ") || "no time yet");
    set(whole, "title", words.join("\n"));
    return words[0] ?? "";
  };
  return whole;
}

export function legend() {
  const items = PARTS.map(([name, text]) =>
    make("li", {}, make(`span.key.${name}`, { "aria-hidden": true }), text),
  );
  return make("ul.legend", {}, ...items);
}
