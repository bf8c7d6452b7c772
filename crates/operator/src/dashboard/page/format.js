// Numbers, durations and times as text.

import { h } from "./safe_html.js";

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

/** An age, updated by `updateAges`. */
export function ago(at) {
  if (!at) return h("span", {}, "");
  return updateAge(h("time", { datetime: at, title: new Date(at).toLocaleString() }));
}

/** A sentence whose timestamps are shown in local time. */
export const withLocalTimes = (text) =>
  text.split(/(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)/).map((part, place) => {
    const then = place % 2 ? new Date(part) : null;
    if (!then) return part;
    const today = then.toDateString() === new Date().toDateString();
    return h("span", { title: part }, today ? then.toLocaleTimeString() : then.toLocaleString());
  });

function updateAge(element) {
  const text = span((Date.now() - Date.parse(element.dateTime)) / 1000);
  const words = text === "now" ? text : `${text} ago`;
  if (element.textContent !== words) element.textContent = words;
  return element;
}

export const updateAges = () => document.querySelectorAll("main time:not([data-fixed])").forEach(updateAge);

/** Text after data of an API server that does not answer. */
export function lastSeen({ since }) {
  return since ? `, last seen at ${new Date(since).toLocaleTimeString()}` : ", never seen by this page";
}
