// The KeepPolicies and the configuration, in order of precedence, with everything that they decide.

import { command } from "./commands.js";
import { plural } from "./format.js";
import { at } from "./links.js";
import { fetchJson, loader } from "./requests.js";
import { h, refresh } from "./safe_html.js";

const SHOWN = 12;

export function policies() {
  const body = h("div", { class: "column" });
  const problem = h("p", { class: "empty", hidden: true });
  const load = loader(problem, body, () => fetchJson("api/policies"), (value) => refresh(body, value, draw));
  load();
  return {
    element: h(
      "div",
      {},
      h(
        "div",
        { class: "heading" },
        h("h1", {}, "Policies"),
        h("p", { class: "soft" }, "The first policy that selects a node applies to it: the one with the highest priority, then the first by name. The configuration applies to all other nodes."),
      ),
      problem,
      body,
    ),
    overview: load,
    again: load,
    close: load.close,
  };
}

function draw({ items, known }) {
  const cards = items.map((item) => (item.problems ? invalid(item) : valid(item)));
  return known ? cards : [h("p", { class: "empty" }, "The KeepPolicies could not be read yet. Until then nothing is captured or restored."), ...cards];
}

const titled = (item, ...more) =>
  h("header", {}, h("h2", { id: `policy-${item.name}` }, item.config ? "Configuration" : item.name), ...more);

function valid(item) {
  const fact = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
  const selects = item.config ? "every node that no KeepPolicy selects" : item.selector ? h("code", { class: "mono" }, item.selector) : "all nodes";
  return h(
    "section",
    { class: "card", "aria-labelledby": `policy-${item.name}` },
    titled(item, h("p", { class: "small" }, h("a", { href: at("nodes", { policy: item.name }) }, plural(item.nodes, "node")), h("span", { class: "soft" }, `, ${plural(item.records, "record")}`))),
    h(
      "dl",
      { class: "facts" },
      item.config ? null : fact("Priority", item.priority),
      fact("Selects", selects),
      fact("Keeps labels", patterns(item.keep, "none")),
      fact("Drops labels", patterns(item.drop, "none")),
      fact("Drops labels written only by", patterns(item.dropManagers, "none")),
      fact("Keeps annotations", patterns(item.annotations, "none")),
      fact("Keeps taints", patterns(item.taints, "none")),
      fact("Keeps cordons", item.cordon ? "yes" : "no"),
      fact("Merge", item.merge === "overwrite" ? "overwrite: the value of the record wins" : `${item.merge}: the value of the node wins`),
      fact("Identity", item.identity),
      fact("Only to the same machine", patterns(item.protected, "none")),
      fact("Withheld", `for up to ${plural(item.withheld, "other machine")} per record`),
      fact("Retention", `${item.retention} after its node is gone`),
      fact("History", plural(item.history, "earlier version")),
    ),
    item.command ? h("div", { class: "below" }, command(item.command)) : null,
  );
}

function invalid(item) {
  return h(
    "section",
    { class: "card", "aria-labelledby": `policy-${item.name}` },
    titled(item, h("span", { class: "pill tone-bad" }, "ignored: invalid")),
    h("ul", { class: "story" }, item.problems.map((text) => h("li", {}, text))),
    h("div", { class: "below" }, command(item.command)),
  );
}

/** A list of patterns. A long one can be opened. */
function patterns(list, none) {
  if (!list.length) return h("span", { class: "soft" }, none);
  const tags = (some) => h("span", { class: "tags" }, some.map((pattern) => h("span", { class: "tag mono" }, pattern)));
  if (list.length <= SHOWN) return tags(list);
  return h("details", {}, h("summary", {}, plural(list.length, "pattern")), tags(list));
}
