// The list of nodes, including records of deleted nodes.

import { ago, lastSeen, number, plural } from "./format.js";
import { at, nodeAt, put } from "./links.js";
import { List, follower } from "./list.js";
import { h } from "./safe_html.js";
import { displayOf, namesOf, pill } from "./states.js";

const READY = new Map([[true, "Ready"], [false, "NotReady"], [null, "–"]]);

/** Node, State, Kept, Policy, Captured and Collected are those of `perennial nodes -o wide`. */
const COLUMNS = [
  { title: "Node", sort: "name" },
  { title: "State", sort: "state" },
  { title: "Ready", sort: "ready" },
  { title: "Kept" },
  { title: "Labels" },
  { title: "Policy", sort: "policy" },
  { title: "Captured", sort: "captured" },
  { title: "Away since", sort: "absent" },
  { title: "Collected" },
];

const FILTERS = ["q", "state", "policy", "hold", "l", "sort"];

export function nodes(_, query) {
  const count = h("p", { class: "soft", role: "status" }, "");
  const states = h("div", { class: "chips", role: "group", "aria-label": "Filter by state" });
  const labels = h("input", { type: "search", id: "labels", placeholder: "team=ml,tier!=gold", autocomplete: "off", spellcheck: "false", "aria-describedby": "labels-problem" });
  const problem = h("p", { class: "problem small", id: "labels-problem", role: "alert", hidden: true });
  const policy = h("select", { id: "policy" });
  const hold = h("input", { type: "checkbox", id: "hold" });
  const list = new List({
    path: "api/nodes",
    label: "Nodes and records of deleted nodes",
    head: COLUMNS,
    open: (item) => nodeAt(item.name),
    sorted: (values) => at("nodes", values),
    row: (item) => [
      h("a", { class: "name mono", href: nodeAt(item.name), tabindex: "-1", title: item.name }, item.name),
      [pill("nodes", item.state), item.bad ? h("span", { class: "pill tone-bad" }, "quarantined") : null, item.hold ? h("span", { class: "pill tone-muted" }, "hold") : null],
      h("span", { class: item.ready === false ? "off" : null }, READY.get(item.ready)),
      item.keys === null ? "–" : number(item.keys),
      item.labels.length ? h("span", { class: "mono", title: item.labels.join("\n") }, item.labels.join(", ")) : "–",
      item.policy,
      item.capturedAt ? ago(item.capturedAt) : "–",
      item.absentSince ? ago(item.absentSince) : "–",
      collected(item),
    ],
    none: (values, { total, synced, stale }) =>
      !synced ? "Nodes and records are not loaded yet." : !total && stale ? "No nodes or records were known when the API server last answered." : !total ? "There are no nodes and no records." : nothing(values),
    counted: (value) => {
      count.textContent = value.matched === value.total ? `${plural(value.total, "node")}, including deleted ones` : `${number(value.matched)} of ${plural(value.total, "node")}`;
      if (value.stale) count.textContent += lastSeen(value.stale);
      problem.hidden = !value.problem;
      problem.textContent = value.problem ? `Not a label selector: ${value.problem}.` : "";
      labels.setAttribute("aria-invalid", value.problem ? "true" : "false");
      drawStates(value);
      drawPolicies(value.policies);
    },
  });

  function drawStates(value) {
    const all = Object.values(value.states).reduce((sum, each) => sum + each, 0);
    const { state } = list.values;
    const link = (word, text) => h("a", { class: "chip", href: at("nodes", { ...list.values, state: word }), "aria-current": state === word ? "true" : null }, text);
    states.replaceChildren(
      link("", `All ${number(all)}`),
      ...namesOf("nodes")
        .filter((word) => value.states[word] || word === state)
        .map((word) => link(word, `${displayOf("nodes", word).label} ${number(value.states[word])}`)),
    );
  }

  function drawPolicies(names) {
    const wanted = list.values.policy ?? "";
    const known = [...new Set(["", "config", ...names, wanted])];
    if (policy.shown !== known.join()) {
      policy.shown = known.join();
      policy.replaceChildren(...known.map((name) => h("option", { value: name }, name || "any")));
    }
    policy.value = wanted;
  }

  function choose(values) {
    const next = { ...list.values, ...values };
    put(at("nodes", next));
    list.search(next);
  }
  labels.addEventListener("input", () => choose({ l: labels.value.trim() }));
  policy.addEventListener("change", () => choose({ policy: policy.value }));
  hold.addEventListener("change", () => choose({ hold: hold.checked ? "true" : "" }));

  const follow = follower(list);
  function search(query) {
    const values = Object.fromEntries(FILTERS.map((name) => [name, query.get(name) ?? ""]));
    if (document.activeElement !== labels) labels.value = values.l;
    hold.checked = values.hold === "true";
    list.search(values);
  }
  search(query);
  return {
    element: h(
      "div",
      { class: "tall wide" },
      h("div", { class: "heading" }, h("h1", {}, "Nodes"), count),
      h(
        "div",
        { class: "filters" },
        states,
        h("label", { class: "field", for: "labels" }, "Label selector", labels),
        h("label", { class: "field", for: "policy" }, "Policy", policy),
        h("label", { class: "field", for: "hold" }, hold, "On hold"),
      ),
      problem,
      list.element,
    ),
    search,
    overview: () => follow.changed(),
    again: () => follow.changed(),
    key: (event) => list.key(event),
    enter: (open) => list.enter(open),
    close: () => (follow.close(), list.close()),
  };
}

/** When the record is deleted: a date, or the words of the command line. */
function collected({ collection, collected }) {
  if (!collection?.at) return collected === "-" ? "–" : collected;
  return h("time", { datetime: collection.at, title: new Date(collection.at).toLocaleString(), "data-fixed": "" }, new Date(collection.at).toLocaleDateString());
}

function nothing({ q, state, policy, hold, l }) {
  const others = [state && "in this state", policy && "under this policy", hold && "on hold", l && "with these labels"].filter(Boolean).join(" ");
  return q ? `No node${others ? ` ${others}` : ""} has “${q}” in its name.` : `No node is ${others || "here"}.`;
}
