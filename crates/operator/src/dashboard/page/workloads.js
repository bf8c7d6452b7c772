// The workloads that ask for placement.

import { h } from "./dom.js";
import { List, follower } from "./list.js";
import { UNKNOWN, WORKLOADS, at, number, pill, plural, put, workloadAt } from "./words.js";

export function workloads(_, query) {
  const count = h("p", { class: "soft", role: "status" }, "");
  const filters = h("div", { class: "chips", role: "group", "aria-label": "Filter by state" });
  const find = h("input", { type: "search", id: "find-workload", placeholder: "Namespace or name", autocomplete: "off", spellcheck: "false" });
  const shares = (has, wants) => (has === wants ? number(has) : `${number(has)} of ${number(wants)}`);
  const list = new List({
    path: "api/workloads",
    label: "Workloads",
    head: ["Workload", "State", "On-demand", "On spot", "Why"],
    open: (item) => workloadAt(item.kind, item.namespace, item.name),
    row: (item) => [
      h(
        "a",
        { class: "name", href: workloadAt(item.kind, item.namespace, item.name), tabindex: "-1" },
        h("span", { class: "soft" }, `${item.namespace} / `),
        item.name,
        h("span", { class: "soft small" }, ` ${item.kind}`),
      ),
      pill(item.state, WORKLOADS),
      item.counts ? shares(item.counts.onDemand, item.counts.desiredOnDemand) : "–",
      item.counts ? shares(item.counts.spot, item.counts.desiredSpot) : "–",
      h("span", { class: "soft", title: item.why }, item.why),
    ],
    none: ({ q, state }, { total, enabled, synced }) =>
      !synced && enabled ? UNKNOWN : !enabled ? "Placement is off (placement.enabled)." : !total ? "No workload asks for placement. An annotation does: perennial.dev/spot-percentage." : `No workload ${state ? "in this state " : ""}${q ? `has “${q}” in its name` : "is there"}.`,
    counted: (value) => {
      count.textContent = value.matched === value.total ? plural(value.total, "workload") : `${number(value.matched)} of ${plural(value.total, "workload")}`;
      const { q, state } = list.values;
      filters.replaceChildren(
        ...["", ...Object.keys(WORKLOADS)]
          .filter((word) => !word || value.states[word] || word === state)
          .map((word) => h("a", { class: "chip", href: at("workloads", { q, state: word }), "aria-current": state === word ? "true" : null }, word ? `${WORKLOADS[word][1]} ${number(value.states[word])}` : "All")),
      );
    },
  });
  const follow = follower(list);
  function search(query) {
    const values = { q: query.get("q") ?? "", state: query.get("state") ?? "" };
    if (document.activeElement !== find) find.value = values.q;
    list.search(values);
  }
  find.addEventListener("input", () => {
    const values = { ...list.values, q: find.value.trim() };
    put(at("workloads", values));
    list.search(values);
  });
  search(query);
  return {
    element: h(
      "div",
      { class: "tall wide-last" },
      h("div", { class: "heading" }, h("h1", {}, "Workloads"), count, h("div", { class: "beside" }, h("label", { class: "hidden", for: "find-workload" }, "Find a workload"), find)),
      filters,
      list.element,
    ),
    search,
    overview: () => follow.changed(),
    again: () => follow.changed(),
    key: (event) => list.key(event),
    close: () => (follow.close(), list.close()),
  };
}
