// Chart of the churn: created nodes above the line, deleted nodes below it, and a dot for restored nodes.

import { plural, span } from "./format.js";
import { h, svg } from "./safe_html.js";

const BARS = 60;
const [WIDTH, HEIGHT, MIDDLE] = [720, 136, 84];

/** Number of intervals in a bar: the chart shows an hour, or less if there is less data. */
const perBar = (intervals) => [1, 3].find((each) => intervals.length <= BARS * each) ?? 6;

/** The time that the chart shows, in seconds. Its title and its axis name the same. */
export const shownSeconds = (intervals, seconds) => BARS * perBar(intervals) * seconds;

/** Sums intervals to bars of equal length, oldest first. */
function bars(intervals, seconds) {
  const each = perBar(intervals);
  const sums = Array.from({ length: BARS }, () => [0, 0, 0]);
  for (let back = 0; back < intervals.length; back++) {
    const bar = sums[BARS - 1 - Math.floor(back / each)];
    const counts = intervals[intervals.length - 1 - back];
    if (bar) for (const place of [0, 1, 2]) bar[place] += counts[place];
  }
  return { sums, length: each * seconds };
}

export function churn(intervals, seconds) {
  const { sums, length } = bars(intervals, seconds);
  const most = Math.max(4, ...sums.map(([came, went]) => Math.max(came, went)));
  // The height is the square root of a count, so that small counts remain visible.
  const tall = (count, room) => (count ? Math.max(2.5, (Math.sqrt(count) / Math.sqrt(most)) * room) : 0);
  const step = WIDTH / BARS;
  const parts = [];
  sums.forEach(([came, went, restored], place) => {
    const x = place * step + 1.5;
    const width = step - 3;
    const up = tall(came, MIDDLE - 16);
    const down = tall(went, HEIGHT - MIDDLE - 6);
    const group = svg("g", {});
    if (up) group.append(svg("rect", { class: "came", x, y: MIDDLE - 1 - up, width, height: up, rx: 2 }));
    if (down) group.append(svg("rect", { class: "went", x, y: MIDDLE + 1, width, height: down, rx: 2 }));
    if (restored) group.append(svg("circle", { class: "restored", cx: x + width / 2, cy: MIDDLE - 7 - up, r: 2.6 }));
    if (came || went || restored) {
      const when = `${span((BARS - 1 - place) * length)}${place === BARS - 1 ? "" : " ago"}`;
      group.append(svg("title", {}, `${when}: ${came} created, ${went} deleted, ${restored} restored`));
      parts.push(group);
    }
  });
  const total = (place) => sums.reduce((sum, counts) => sum + counts[place], 0);
  const whole = shownSeconds(intervals, seconds);
  const label = `In the last ${span(whole)}: ${plural(total(0), "node")} created, ${total(1)} deleted, ${total(2)} restored.`;
  const line = svg("line", { x1: 0, x2: WIDTH, y1: MIDDLE, y2: MIDDLE });
  return [
    svg("svg", { class: "churn", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label }, line, ...parts),
    // Outside of the SVG, so that the font size does not scale with it.
    h("p", { class: "axis", "aria-hidden": "true" }, h("span", {}, `${span(whole)} ago`), h("span", {}, `${span(whole / 2)} ago`), h("span", {}, "now")),
  ];
}
