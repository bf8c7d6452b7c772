// The list of nodes, including records of deleted nodes.

import { ago, number, plural } from "./format.js";
import { at, nodeAt } from "./links.js";
import { List, follower } from "./list.js";
import { h } from "./safe_html.js";
import { displayOf, namesOf, pill } from "./states.js";

export function nodes(_, query) {
  const title = h("h1", {}, "Nodes");
  const count = h("p", { class: "soft", role: "status" }, "");
  const filters = h("div", { class: "chips", role: "group", "aria-label": "Filter by state" });
  const list = new List({
    path: "api/nodes",
    label: "Nodes",
    head: ["Node", "State", "Kept keys", "Version", "Captured"],
    open: (item) => nodeAt(item.name),
    row: (item) => [
      h("a", { class: "name mono", href: nodeAt(item.name), tabindex: "-1" }, item.name),
      [pill("nodes", item.state), item.bad ? h("span", { class: "pill tone-bad" }, "record quarantined") : null],
      item.keys === null ? "–" : number(item.keys),
      item.sequence === null ? "–" : number(item.sequence),
      ago(item.capturedAt),
    ],
    none: ({ q, state }, { total }) =>
      !total ? "There are no nodes and no records." : q ? `No node${state ? " in this state" : ""} has “${q}” in its name.` : "No node is in this state.",
    counted: (value) => {
      count.textContent = value.matched === value.total ? `${plural(value.total, "node")}, including deleted ones` : `${number(value.matched)} of ${plural(value.total, "node")}`;
      const all = Object.values(value.states).reduce((sum, each) => sum + each, 0);
      const { q, state } = list.values;
      filters.replaceChildren(
        h("a", { class: "chip", href: at("nodes", { q }), "aria-current": state ? null : "true" }, `All ${number(all)}`),
        ...namesOf("nodes")
          .filter((word) => value.states[word] || word === state)
          .map((word) => h("a", { class: "chip", href: at("nodes", { q, state: word }), "aria-current": state === word ? "true" : null }, `${displayOf("nodes", word).label} ${number(value.states[word])}`)),
      );
    },
  });
  const follow = follower(list);
  const search = (query) => list.search({ q: query.get("q") ?? "", state: query.get("state") ?? "" });
  search(query);
  return {
    element: h("div", { class: "tall" }, h("div", { class: "heading" }, title, count), filters, list.element),
    search,
    overview: () => follow.changed(),
    again: () => follow.changed(),
    key: (event) => list.key(event),
    enter: (open) => list.enter(open),
    close: () => (follow.close(), list.close()),
  };
}
