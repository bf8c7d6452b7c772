// One node: the origin of each key, its incarnations and what changed in them.

import { commands } from "./commands.js";
import { ago, capital, number, plural } from "./format.js";
import { nodeAt, put } from "./links.js";
import { fetchJson, loader } from "./requests.js";
import { h, refresh } from "./safe_html.js";
import { displayOf, namesOf, pill } from "./states.js";

export function node([name], query) {
  const head = h("div", { class: "heading" }, h("h1", { class: "mono" }, name));
  const keys = h("section", { class: "card", "aria-labelledby": "keys-of-node" });
  const lives = h("section", { class: "card", "aria-labelledby": "lives" });
  const facts = h("section", { class: "card", "aria-labelledby": "facts" });
  const how = h("section", { class: "card", "aria-labelledby": "how" });
  const events = h("section", { class: "card", "aria-labelledby": "events", hidden: true });
  const body = h("div", { class: "columns" }, h("div", { class: "column" }, keys, how), h("div", { class: "column" }, lives, facts, events));
  const problem = h("p", { class: "empty", hidden: true });
  body.hidden = true;

  let value = null;
  let origin = query.get("origin") ?? "";
  let version = null;

  const load = loader(problem, body, () => fetchJson("api/node", { name }), (found) => {
    value = found;
    draw();
  });

  function choose(next) {
    origin = origin === next ? "" : next;
    put(nodeAt(name, { origin }));
    draw();
  }

  function draw() {
    refresh(head, [value.name, value.state, value.sentence], () => [
      h("p", { class: "back" }, h("a", { href: "#/nodes" }, "Nodes")),
      h("h1", { class: "mono" }, value.name),
      h("p", { class: "standing" }, pill("nodes", value.state), h("span", { class: "soft" }, value.sentence.replace(/^[a-z ]+: /, ""))),
    ]);
    refresh(keys, [value.keys, origin], () => table(value.keys, origin, choose));
    refresh(lives, value.incarnations, () => timeline(value));
    refresh(facts, [value.record, value.restored, value.next, value.nothing, value.unattended, value.policy, value.identity, value.created], () => about(value));
    refresh(how, value.commands, commands);
    events.hidden = !value.events.length;
    refresh(events, value.events, () => [
      h("header", {}, h("h2", { id: "events" }, "Recent Events")),
      h("ul", { class: "events" }, value.events.map((event) => h("li", {}, h("p", {}, h("strong", {}, event.reason), " ", h("span", { class: "soft small" }, ago(event.at))), h("p", { class: "small" }, event.message)))),
    ]);
  }

  load();
  return {
    element: h("div", {}, head, problem, body),
    // The overview does not name the changed node, so every change of its numbers reloads this one.
    happened: (happening) => happening.node === name && load(),
    overview: (overview) => {
      const seen = JSON.stringify([overview.records, overview.nodes]);
      if (version !== null && version !== seen) load();
      version = seen;
    },
    again: load,
    close: load.close,
    search: (query) => {
      origin = query.get("origin") ?? "";
      if (value) draw();
    },
  };
}

function table(keys, origin, choose) {
  const counts = new Map();
  for (const key of keys) counts.set(key.origin, (counts.get(key.origin) ?? 0) + 1);
  const order = namesOf("origins");
  const words = order.filter((word) => counts.has(word));
  const shown = keys.filter((key) => !origin || key.origin === origin);
  shown.sort((a, b) => order.indexOf(a.origin) - order.indexOf(b.origin));
  return [
    h("header", {}, h("h2", { id: "keys-of-node" }, "Labels and other kept keys")),
    h(
      "div",
      { class: "chips", role: "group", "aria-label": "Filter by origin" },
      words.map((word) => h("button", { class: "chip", type: "button", title: displayOf("origins", word).label, "aria-current": origin === word ? "true" : null, onclick: () => choose(word) }, `${word} ${number(counts.get(word))}`)),
    ),
    shown.length
      ? h("ul", { class: "keylist" }, shown.map(line))
      : h("p", { class: "empty" }, "No keys."),
  ];
}

function line(key) {
  const { tone } = displayOf("origins", key.origin);
  const value = key.value ?? key.inRecord;
  const gone = key.value === null || key.value === undefined;
  return h(
    "li",
    { class: gone ? "gone" : "" },
    h(
      "details",
      {},
      h(
        "summary",
        {},
        h("span", { class: "pair mono" }, h("span", { class: "key" }, key.key), value ? [h("span", { class: "soft" }, "="), h("span", { class: "value" }, value)] : null),
        h("span", { class: `pill tone-${tone}` }, key.origin),
      ),
      h("div", { class: "why" }, h("p", {}, capital(key.why) + "."), key.fix ? h("p", { class: "soft" }, key.fix) : null),
    ),
  );
}

function timeline({ incarnations, created, restored }) {
  const title = h("header", {}, h("h2", { id: "lives" }, "Incarnations"), h("p", { class: "soft small" }, "newest first"));
  if (!incarnations.length) return [title, h("p", { class: "empty" }, "The node was never captured.")];
  return [
    title,
    h(
      "ol",
      { class: "lives" },
      incarnations.map((life, place) =>
        h(
          "li",
          { class: life.alive ? "life alive" : "life" },
          h(
            "div",
            { class: "born" },
            h("h3", {}, life.alive ? "Current incarnation" : place === 0 ? "Last incarnation" : "Earlier incarnation"),
            life.alive ? h("span", { class: "soft small" }, ago(created)) : null,
            h("p", { class: "mono soft uid" }, life.uid || "imported"),
          ),
          life.alive && restored?.keys
            ? h("p", { class: "given" }, `Restored ${plural(restored.keys, "key")}${restored.by ? ` ${restored.by}` : ""}${restored.complete ? "" : "; some keys were withheld"}.`)
            : null,
          life.captures.length
            ? h("ol", { class: "captures" }, life.captures.map(capture))
            : h("p", { class: "soft small" }, life.alive ? "No capture yet: the record has the same content." : ""),
        ),
      ),
    ),
  ];
}

function capture(each) {
  const changes = each.changes.slice(0, 30);
  return h(
    "li",
    {},
    h("p", { class: "small" }, h("strong", {}, `Version ${number(each.sequence)}`), each.now ? h("span", { class: "soft" }, ", current") : null, " ", h("span", { class: "soft" }, ago(each.at))),
    each.changes.length
      ? h("ul", { class: "diff mono", "aria-label": `Changes of version ${each.sequence}` }, changes.map(change), each.changes.length > changes.length ? h("li", { class: "soft" }, `and ${number(each.changes.length - changes.length)} more`) : null)
      : h("p", { class: "soft small" }, "no changes"),
  );
}

function change({ key, before, after }) {
  if (before === null) return h("li", { class: "plus" }, h("span", { class: "hidden" }, "added "), `${key}=${after}`);
  if (after === null) return h("li", { class: "minus" }, h("span", { class: "hidden" }, "removed "), `${key}=${before}`);
  return h("li", { class: "differs" }, h("span", { class: "hidden" }, "changed "), `${key}=`, h("del", {}, before), h("span", { class: "hidden" }, " to "), ` `, h("ins", {}, after));
}

function about(value) {
  const rows = [];
  const add = (name, ...what) => rows.push(h("div", {}, h("dt", {}, name), h("dd", {}, what)));
  add("Identity", value.identity ?? "no identity yet");
  add("Policy", value.policy === "config" ? "the configuration" : `KeepPolicy ${value.policy}`);
  const record = value.record;
  if (!record) add("Record", "none");
  else {
    add("Record", h("span", { class: "mono" }, record.name), record.fault ? ` is quarantined: ${record.fault}; ${record.instead}` : "");
    if (record.hold) add("Hold", "excluded from garbage collection");
    if (!value.uid || record.hold) add("Deleted", record.collected);
    if (record.capturedAt) add("Written", ago(record.capturedAt), record.capturedBy ? [" by ", h("span", { class: "mono" }, record.capturedBy)] : "");
  }
  if (value.next) {
    const given = Object.keys(value.next.given).length;
    const held = value.next.withheld.length ? `, except ${value.next.withheld.join(", ")}` : "";
    const later = value.next.later.length ? ` (${value.next.later.join(", ")} after the creation)` : "";
    const promise = value.unattended ? `an operator would restore ${plural(given, "key")}${later}${held}, but ${value.unattended}` : `restores ${plural(given, "key")}${later}${held}`;
    add(value.uid ? "If recreated now" : "When created again", given ? promise : "restores nothing");
  } else if (value.nothing) add(value.uid ? "If recreated now" : "When created again", `nothing is restored: ${value.nothing}`);
  return [h("header", {}, h("h2", { id: "facts" }, "Details")), h("dl", { class: "facts" }, rows)];
}
