// Words and figures: states, ages, counts, and addresses within the page.

import { h } from "./dom.js";

/** States of nodes in the order in which people want to hear of them, with their tone. */
export const STATES = {
  Contested: ["bad", "contested"],
  NewerRecord: ["bad", "newer record"],
  Unsettled: ["warn", "unsettled"],
  Unidentified: ["warn", "unidentified"],
  Pending: ["clay", "changed"],
  Waiting: ["blue", "waiting"],
  Current: ["good", "current"],
  Away: ["grey", "away"],
  NoRecord: ["grey", "nothing kept"],
  Ignored: ["grey", "ignored"],
};

export const WORKLOADS = {
  Invalid: ["bad", "left alone"],
  Fallback: ["warn", "short of spot"],
  Drift: ["clay", "drift"],
  Exact: ["good", "exact"],
};

/** Said of workloads that nobody could read. */
export const UNKNOWN = "The workloads are still being read, or may not be read by whoever serves this page.";

export const ORIGINS = {
  restored: ["good", "given back when it returned"],
  kept: ["blue", "the node's own, and in its record"],
  new: ["clay", "about to be captured"],
  due: ["warn", "about to be given"],
  waiting: ["grey", "waits for the node"],
  withheld: ["bad", "in the record, and not given"],
  removed: ["grey", "was there, and stays removed"],
  excluded: ["grey", "left out by policy"],
  foreign: ["grey", "written by programs, not kept"],
};

export const pill = (word, table = STATES) => {
  const [tone, text] = table[word] ?? ["grey", word];
  return h("span", { class: `pill tone-${tone}` }, text);
};
export const swatch = (tone) => h("span", { class: `swatch is-${tone}`, "aria-hidden": "true" });

const NUMBER = new Intl.NumberFormat("en");
export const number = (value) => NUMBER.format(value ?? 0);
export const plural = (count, one, many = `${one}s`) => `${number(count)} ${count === 1 ? one : many}`;

export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

export function span(seconds) {
  if (seconds < 1) return "now";
  if (seconds < 120) return `${Math.floor(seconds)} s`;
  if (seconds < 3600 * 2) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

/** How long ago something was; kept up to date by `tick`. */
export function ago(at) {
  if (!at) return h("span", {}, "");
  return told(h("time", { datetime: at, title: new Date(at).toLocaleString() }));
}

/** A sentence in which times are said as people say them. */
export const timed = (text) =>
  text.split(/(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)/).map((part, place) => {
    const then = place % 2 ? new Date(part) : null;
    if (!then) return part;
    const today = then.toDateString() === new Date().toDateString();
    return h("span", { title: part }, today ? then.toLocaleTimeString() : then.toLocaleString());
  });

function told(element) {
  const text = span((Date.now() - Date.parse(element.dateTime)) / 1000);
  const words = text === "now" ? text : `${text} ago`;
  if (element.textContent !== words) element.textContent = words;
  return element;
}

export const tick = () => document.querySelectorAll("main time").forEach(told);

const query = (values) => {
  const kept = Object.entries(values).filter(([, value]) => value);
  return kept.length ? `?${new URLSearchParams(kept)}` : "";
};
export const at = (view, values = {}) => `#/${view}${query(values)}`;
export const nodeAt = (name, values = {}) => `#/node/${encodeURIComponent(name)}${query(values)}`;
export const workloadAt = (kind, namespace, name) => `#/workload/${[kind, namespace, name].map(encodeURIComponent).join("/")}`;
export const workloadByKey = (key) => workloadAt(...key.split("/"));

/** Changes what the address says without a step in the browser's history. */
export const put = (address) => {
  if (location.hash !== address) history.replaceState(null, "", address);
};
