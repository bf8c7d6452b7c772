// One workload: its slots as a picture, and the pending actions.

import { commands } from "./commands.js";
import { ago, capital, number, plural, withLocalTimes } from "./format.js";
import { nodeAt } from "./links.js";
import { fetchJson, loader } from "./requests.js";
import { h, refresh, svg } from "./safe_html.js";
import { pill } from "./states.js";

export function workload([kind, namespace, name]) {
  const head = h("div", { class: "heading" }, h("h1", {}, name));
  const problem = h("p", { class: "empty", hidden: true });
  const picture = h("section", { class: "card", "aria-labelledby": "slots" });
  const doing = h("section", { class: "card", "aria-labelledby": "doing" });
  const how = h("section", { class: "card", "aria-labelledby": "how" });
  const body = h("div", {}, picture, h("div", { class: "columns even" }, doing, how));
  body.hidden = true;
  let drawn = null;
  let value = null;

  const load = loader(problem, body, () => fetchJson("api/workload", { kind, namespace, name }), (found) => {
    value = found;
    draw();
  });

  function draw() {
    refresh(head, [value.state, value.why], () => [
      h("p", { class: "back" }, h("a", { href: "#/workloads" }, "Workloads")),
      h("h1", {}, h("span", { class: "soft" }, `${namespace} / `), name),
      h("p", { class: "standing" }, pill("workloads", value.state), h("span", { class: "soft" }, [`${kind}; `, withLocalTimes(value.why)])),
    ]);
    refresh(picture, [value.slots, value.others, value.counts, value.asked], () => {
      drawn?.close();
      drawn = value.slots ? slots(value) : null;
      return drawn ? drawn.parts : [h("header", {}, h("h2", { id: "slots" }, "Slots")), h("p", { class: "empty" }, "Its pods run where the scheduler puts them.")];
    });
    refresh(doing, [value.lines, value.doing, value.breaker, value.moved], () => actions(value));
    refresh(how, value.commands, commands);
  }

  load();
  const timer = setInterval(load, 2000);
  return {
    element: h("div", { class: "workload" }, head, problem, body),
    again: load,
    close: () => (clearInterval(timer), load.close(), drawn?.close()),
  };
}

/** The shape of a slot is its class, the colour is where its replica runs. */
function kindOf(slot) {
  const shape = slot.wants === "spot" ? "round" : "square";
  if (!slot.pod) return [shape, "vacant"];
  if (slot.gated || !slot.has) return [shape, "waits"];
  return [shape, slot.has === "spot" ? "spot" : "steady", slot.ready ? "" : "unready"];
}

function describe(slot) {
  const wants = slot.wants === "spot" ? "spot" : "on-demand";
  const has = slot.has === "spot" ? "spot" : "on-demand";
  if (!slot.pod) return `slot ${slot.slot}, for ${wants}: empty`;
  if (slot.gated || !slot.has) return `slot ${slot.slot}, for ${wants}: ${slot.pod} waits`;
  const where = slot.has === slot.wants ? has : `${has} instead`;
  return `slot ${slot.slot}, for ${wants}: ${slot.pod} runs ${has === "spot" ? "on " : ""}${where}${slot.ready ? "" : ", not ready"}`;
}

function slots({ slots, others, counts, asked }) {
  const size = slots.length <= 240 ? 30 : slots.length <= 800 ? 20 : slots.length <= 3000 ? 13 : 8;
  const caption = h("p", { class: "caption soft", role: "status" }, "Point at a slot, or select one with the arrow keys.");
  const board = svg("svg", { class: "slots", tabindex: "0", role: "img", "aria-label": label(counts) });
  const cursor = svg("rect", { class: "cursor", rx: 5, width: size, height: size, visibility: "hidden" });
  let columns = 1;
  let chosen = -1;

  function layout() {
    columns = Math.max(1, Math.floor((board.parentElement?.clientWidth ?? 600) / size));
    // Rows of a multiple of ten are easy to count.
    if (columns > 10) columns -= columns % 10;
    const rows = Math.ceil(slots.length / columns);
    const [width, height] = [columns * size, rows * size];
    board.setAttribute("viewBox", `0 0 ${width} ${height}`);
    board.setAttribute("width", width);
    board.setAttribute("height", height);
    const paths = new Map();
    slots.forEach((slot, place) => {
      const [x, y] = [(place % columns) * size, Math.floor(place / columns) * size];
      const name = kindOf(slot).filter(Boolean).join(" ");
      paths.set(name, (paths.get(name) ?? "") + outline(name.startsWith("round"), x, y));
    });
    board.replaceChildren(...[...paths].map(([name, d]) => svg("path", { class: name, d })), cursor);
  }

  function outline(round, x, y) {
    const gap = size > 10 ? Math.max(2, size * 0.13) : 1;
    const side = size - gap * 2;
    const [cx, cy, r] = [x + size / 2, y + size / 2, side / 2];
    if (round) return `M${cx - r} ${cy}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`;
    const c = Math.min(4, side / 4);
    return `M${x + gap + c} ${y + gap}h${side - 2 * c}q${c} 0 ${c} ${c}v${side - 2 * c}q0 ${c} ${-c} ${c}h${-(side - 2 * c)}q${-c} 0 ${-c} ${-c}v${-(side - 2 * c)}q0 ${-c} ${c} ${-c}z`;
  }

  function choose(place) {
    chosen = Math.max(0, Math.min(place, slots.length - 1));
    const slot = slots[chosen];
    cursor.setAttribute("visibility", "visible");
    cursor.setAttribute("x", (chosen % columns) * size);
    cursor.setAttribute("y", Math.floor(chosen / columns) * size);
    caption.replaceChildren(capital(describe(slot)), ...(slot.node ? [", ", h("a", { href: nodeAt(slot.node) }, slot.node)] : []));
  }

  board.addEventListener("pointermove", (event) => {
    const box = board.getBoundingClientRect();
    const scale = (columns * size) / box.width;
    const [column, row] = [Math.floor(((event.clientX - box.left) * scale) / size), Math.floor(((event.clientY - box.top) * scale) / size)];
    const place = row * columns + column;
    if (column < columns && place < slots.length) choose(place);
  });
  board.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key];
    if (event.key === "Home") choose(0);
    else if (event.key === "End") choose(slots.length - 1);
    else if (step) choose(chosen < 0 ? 0 : chosen + step);
    else return;
    event.preventDefault();
  });

  const frame = h("div", { class: "board" }, board);
  const watch = new ResizeObserver(layout);
  watch.observe(frame);
  const key = (name, text) => h("li", {}, svg("svg", { class: "slots key", viewBox: "0 0 20 20", width: 18, height: 18, "aria-hidden": "true" }, sample(name)), text);
  const sample = (name) => (name.startsWith("round") ? svg("circle", { class: name, cx: 10, cy: 10, r: 7 }) : svg("rect", { class: name, x: 3, y: 3, width: 14, height: 14, rx: 3 }));
  const seen = new Set(slots.map((slot) => kindOf(slot).filter(Boolean).join(" ")));
  const legend = [
    ["square steady", "on-demand"],
    ["round spot", "spot"],
    ["round steady", "spot slot, running on-demand"],
    ["square spot", "on-demand slot, running on spot"],
    ["square steady unready", "not ready"],
    ["round spot unready", "not ready"],
    ["square waits", "waits"],
    ["round waits", "waits"],
    ["square vacant", "empty"],
    ["round vacant", "empty"],
  ].filter(([name]) => seen.has(name));
  return {
    parts: [
      h("header", {}, h("h2", { id: "slots" }, "Slots"), h("p", { class: "soft small" }, `requested: ${asked.percentage} % on spot, at least ${asked.floor} on-demand`)),
      h("dl", { class: "figures" }, figure(counts.replicas, "replicas"), figure(counts.onDemand, "on-demand", counts.desiredOnDemand), figure(counts.spot, "on spot", counts.desiredSpot), figure(counts.drift, "drift", 0), figure(counts.fallback, "fallback", 0)),
      slots.length ? frame : h("p", { class: "empty" }, "The workload has no replicas."),
      h("ul", { class: "legend" }, legend.map(([name, text]) => key(name, text))),
      caption,
      others.length ? h("p", { class: "soft small" }, `${plural(others.length, "pod is", "pods are")} without a slot: ${others.slice(0, 8).map((pod) => pod.pod).join(", ")}${others.length > 8 ? " …" : ""}`) : null,
    ],
    close: () => watch.disconnect(),
  };
}

const figure = (value, name, wanted = value) => h("div", { class: value === wanted ? "" : "off" }, h("dt", {}, name), h("dd", {}, number(value), value === wanted || name === "drift" || name === "fallback" ? null : h("span", { class: "soft" }, ` of ${number(wanted)}`)));

const label = (counts) => `${plural(counts.replicas, "slot")}: ${counts.onDemand} on-demand, ${counts.spot} on spot, ${counts.drift} in the wrong class, ${counts.fallback} on-demand because spot has no capacity.`;

function actions({ lines, doing, moved }) {
  const title = h("header", {}, h("h2", { id: "doing" }, "Placement"));
  return [
    title,
    h("ul", { class: "story" }, (lines ?? []).map((text) => h("li", { class: doing?.includes(text) ? "doing" : "" }, withLocalTimes(capital(text))))),
    moved ? h("p", { class: "soft small" }, "The last move was ", ago(moved.at), moved.stalled ? `; ${plural(moved.stalled, "move")} in a row without effect` : "") : null,
  ];
}
