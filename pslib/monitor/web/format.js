// Numbers with units, ages, and elements of the page. Texts of a run become text nodes, never markup.

export const NONE = "–";

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** Three significant digits, without an exponent. */
function digits(value) {
  const size = Math.abs(value);
  if (size >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return value.toFixed(size >= 10 ? 1 : 2);
}

function scaled(value, steps, base) {
  let step = 0;
  while (Math.abs(value) >= base * 0.9995 && step < steps.length - 1) {
    value /= base;
    step += 1;
  }
  return [value, steps[step]];
}

/** 1,234; 12.3 k; 4.56 M. */
export function count(value) {
  if (!isNumber(value)) return NONE;
  if (Math.abs(value) < 10_000) {
    return Number.isInteger(value) || Math.abs(value) >= 100 ? Math.round(value).toLocaleString("en") : digits(value);
  }
  const [number, step] = scaled(value, ["", "k", "M", "G", "T"], 1000);
  return `${digits(number)} ${step}`.trim();
}

/** 9.30 GB, as the lines of the command line have them. */
export function bytes(value) {
  if (!isNumber(value)) return NONE;
  const [number, step] = scaled(value, ["B", "kB", "MB", "GB", "TB", "PB"], 1000);
  return `${digits(number)} ${step}`;
}

export const rate = (value) => (isNumber(value) ? `${count(value)}/s` : NONE);
export const byteRate = (value) => (isNumber(value) ? `${bytes(value)}/s` : NONE);
export const fixed = (places) => (value) => (isNumber(value) ? value.toFixed(places) : NONE);
export const times = (value) => (isNumber(value) ? `${value.toFixed(2)} ×` : NONE);

export function share(value) {
  if (!isNumber(value)) return NONE;
  const percent = value * 100;
  return `${percent > 0 && percent < 10 ? percent.toFixed(1) : Math.round(percent)} %`;
}

/** 0.45 ms; 21 ms; 14.2 s; 4 min 12 s; 2 h 5 min; 3 d 4 h. */
export function duration(value) {
  if (!isNumber(value)) return NONE;
  const seconds = Math.max(0, value);
  if (seconds === 0) return "0 s";
  if (seconds < 1) return `${digits(seconds * 1000)} ms`;
  if (seconds < 59.5) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const whole = Math.round(seconds);
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
  return `${Math.floor(whole / 86_400)} d ${Math.floor((whole % 86_400) / 3600)} h`;
}

/** 12 s ago; 4 min ago. */
export function ago(seconds) {
  if (!isNumber(seconds)) return NONE;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s ago`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ago`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min ago`;
  return `${Math.floor(whole / 86_400)} d ago`;
}

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

export const at = (id) => document.getElementById(id);

/** Sets a text only when it is another one: what a screen reader or a selection stands in stays. */
export function put(node, text) {
  const plain = text === null || text === undefined ? NONE : String(text);
  if (node.textContent !== plain) node.textContent = plain;
  return node;
}

export function set(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, String(value));
}

/** Makes `tag.class.class` with attributes and children; a child that is no element is text. */
export function make(kind, attributes = {}, ...children) {
  const [tag, ...classes] = kind.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else set(node, name, value === true ? (name.startsWith("aria-") ? "true" : "") : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Shows items as children of a node; a child of the same key stays the same element, with its focus. */
export function keyed(parent, items, keyOf, create, update) {
  const known = parent.keyed ?? (parent.keyed = new Map());
  const wanted = new Set();
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    if (wanted.has(key)) continue;
    wanted.add(key);
    let child = known.get(key);
    if (!child) {
      child = create(item);
      known.set(key, child);
    }
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
    update(child, item);
  }
  for (const [key, child] of known) {
    if (wanted.has(key)) continue;
    child.remove();
    known.delete(key);
  }
}

/** Shows a list of `[name, text, title]` as terms with values. */
export function facts(list, entries) {
  keyed(
    list,
    entries.filter(Boolean),
    (entry) => entry[0],
    (entry) => {
      const value = make("dd");
      const box = make("div", {}, make("dt", {}, entry[0]), value);
      box.value = value;
      return box;
    },
    (box, [, text, kind]) => {
      put(box.value, text);
      box.value.className = kind ?? "";
    },
  );
}

/** A table with a caption for screen readers; columns are `[heading, class]`. Has `body`. */
export function table(caption, columns) {
  const heads = columns.map(([text, kind]) => make("th", { scope: "col", class: kind }, text));
  const body = make("tbody");
  const whole = make(
    "table",
    {},
    make("caption.unseen", {}, caption),
    make("thead", {}, make("tr", {}, ...heads)),
    body,
  );
  const frame = make("div.scroll", { tabindex: "0", role: "group", "aria-label": caption }, whole);
  frame.body = body;
  return frame;
}

/** Shows items as rows of a table; `cells` gives the texts of one, the first of which names the row. */
export function rows(frame, items, keyOf, columns, cells) {
  keyed(
    frame.body,
    items,
    keyOf,
    () =>
      make(
        "tr",
        {},
        ...columns.map(([, kind], place) =>
          place ? make("td", { class: kind }) : make("th", { scope: "row", class: kind }),
        ),
      ),
    (row, item) => cells(item).forEach((text, place) => put(row.children[place], text)),
  );
}
