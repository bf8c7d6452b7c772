// The list of workloads with placement annotations.

import { lastSeen, number, plural } from "./format.js";
import { at, put, workloadAt } from "./links.js";
import { List, follower } from "./list.js";
import { h } from "./safe_html.js";
import { displayOf, namesOf, pill } from "./states.js";

/** Shown while the workloads are not cached. */
export const NOT_SYNCED = "The workloads are not loaded yet, or the server is not allowed to read them.";

export function workloads(_, query) {
  const count = h("p", { class: "soft", role: "status" }, "");
  const filters = h("div", { class: "chips", role: "group", "aria-label": "Filter by state" });
  const find = h("input", { type: "search", id: "find-workload", placeholder: "Namespace or name", autocomplete: "off", spellcheck: "false" });
  const shares = (has, wants) => (has === wants ? number(has) : `${number(has)} of ${number(wants)}`);
  const list = new List({
    path: "api/workloads",
    label: "Workloads",
    head: [{ title: "Workload", sort: "name" }, { title: "State" }, { title: "On-demand" }, { title: "Spot" }, { title: "Why" }],
    open: (item) => workloadAt(item.kind, item.namespace, item.name),
    row: (item) => [
      h(
        "a",
        { class: "name", href: workloadAt(item.kind, item.namespace, item.name), tabindex: "-1" },
        h("span", { class: "soft" }, `${item.namespace} / `),
        item.name,
        h("span", { class: "soft small" }, ` ${item.kind}`),
      ),
      pill("workloads", item.state),
      item.counts ? shares(item.counts.onDemand, item.counts.desiredOnDemand) : "–",
      item.counts ? shares(item.counts.spot, item.counts.desiredSpot) : "–",
      h("span", { class: "soft", title: item.why }, item.why),
    ],
    none: ({ q, state }, { total, enabled, synced }) =>
      !synced && enabled ? NOT_SYNCED : !enabled ? "Placement is disabled (placement.enabled)." : !total ? "No workload has placement annotations, for example perennial.dev/spot-percentage." : q ? `No workload${state ? " in this state" : ""} has “${q}” in its name.` : "No workload is in this state.",
    counted: (value) => {
      count.textContent = value.matched === value.total ? plural(value.total, "workload") : `${number(value.matched)} of ${plural(value.total, "workload")}`;
      if (value.stale) count.textContent += lastSeen(value.stale);
      const { q, state } = list.values;
      filters.replaceChildren(
        ...["", ...namesOf("workloads")]
          .filter((word) => !word || value.states[word] || word === state)
          .map((word) => h("a", { class: "chip", href: at("workloads", { q, state: word }), "aria-current": state === word ? "true" : null }, word ? `${displayOf("workloads", word).label} ${number(value.states[word])}` : "All")),
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
