// One node: where each of its keys comes from, the lives that it had, and what changed in them.

import { answers, ask, commands, h, refresh } from "./dom.js";
import { ORIGINS, ago, capital, nodeAt, number, pill, plural, put } from "./words.js";

export function node([name], query) {
  const head = h("div", { class: "heading" }, h("h1", { class: "mono" }, name));
  const keys = h("section", { class: "card", "aria-labelledby": "keys-of-node" });
  const lives = h("section", { class: "card", "aria-labelledby": "lives" });
  const facts = h("section", { class: "card", "aria-labelledby": "facts" });
  const how = h("section", { class: "card", "aria-labelledby": "how" });
  const said = h("section", { class: "card", "aria-labelledby": "said", hidden: true });
  const body = h("div", { class: "columns" }, h("div", { class: "column" }, keys, how), h("div", { class: "column" }, lives, facts, said));
  const problem = h("p", { class: "empty", hidden: true });
  body.hidden = true;

  let value = null;
  let origin = query.get("origin") ?? "";
  let version = null;
  let asking = false;

  const answered = answers(problem, body, (found) => {
    value = found;
    draw();
  });

  async function load() {
    if (asking) return;
    asking = true;
    await answered(ask("api/node", { name }));
    asking = false;
  }

  function choose(next) {
    origin = origin === next ? "" : next;
    put(nodeAt(name, { origin }));
    draw();
  }

  function draw() {
    refresh(head, [value.name, value.state, value.sentence], () => [
      h("p", { class: "back" }, h("a", { href: "#/nodes" }, "Nodes")),
      h("h1", { class: "mono" }, value.name),
      h("p", { class: "standing" }, pill(value.state), h("span", { class: "soft" }, value.sentence.replace(/^[a-z ]+: /, ""))),
    ]);
    refresh(keys, [value.keys, origin], () => table(value.keys, origin, choose));
    refresh(lives, value.incarnations, () => timeline(value));
    refresh(facts, [value.record, value.restored, value.next, value.policy, value.identity, value.created], () => about(value));
    refresh(how, value.commands, commands);
    said.hidden = !value.events.length;
    refresh(said, value.events, () => [
      h("header", {}, h("h2", { id: "said" }, "What the operator said lately")),
      h("ul", { class: "said" }, value.events.map((event) => h("li", {}, h("p", {}, h("strong", {}, event.reason), " ", h("span", { class: "soft small" }, ago(event.at))), h("p", { class: "small" }, event.message)))),
    ]);
  }

  load();
  return {
    element: h("div", {}, head, problem, body),
    // Something changed somewhere: it is asked again only where it may be this node.
    happened: (happening) => happening.node === name && load(),
    overview: (overview) => {
      const seen = JSON.stringify([overview.records, overview.nodes]);
      if (version !== null && version !== seen) load();
      version = seen;
    },
    again: load,
    search: (query) => {
      origin = query.get("origin") ?? "";
      if (value) draw();
    },
  };
}

function table(keys, origin, choose) {
  const counts = new Map();
  for (const key of keys) counts.set(key.origin, (counts.get(key.origin) ?? 0) + 1);
  const words = Object.keys(ORIGINS).filter((word) => counts.has(word));
  const shown = keys.filter((key) => !origin || key.origin === origin);
  const order = Object.keys(ORIGINS);
  shown.sort((a, b) => order.indexOf(a.origin) - order.indexOf(b.origin));
  return [
    h("header", {}, h("h2", { id: "keys-of-node" }, "Labels and what else is kept")),
    h(
      "div",
      { class: "chips", role: "group", "aria-label": "Filter by origin" },
      words.map((word) => h("button", { class: "chip", type: "button", title: ORIGINS[word][1], "aria-current": origin === word ? "true" : null, onclick: () => choose(word) }, `${word} ${number(counts.get(word))}`)),
    ),
    shown.length
      ? h("ul", { class: "keylist" }, shown.map(line))
      : h("p", { class: "empty" }, "There are none."),
  ];
}

function line(key) {
  const [tone] = ORIGINS[key.origin] ?? ["grey"];
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
  const title = h("header", {}, h("h2", { id: "lives" }, "Its lives"), h("p", { class: "soft small" }, "newest first"));
  if (!incarnations.length) return [title, h("p", { class: "empty" }, "Nothing was ever captured of it.")];
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
            h("h3", {}, life.alive ? "This incarnation" : place === 0 ? "The last one" : "An earlier one"),
            life.alive ? h("span", { class: "soft small" }, ago(created)) : null,
            h("p", { class: "mono soft uid" }, life.uid || "imported"),
          ),
          life.alive && restored?.keys
            ? h("p", { class: "given" }, `It was given back ${plural(restored.keys, "key")}${restored.by ? ` ${restored.by}` : ""}${restored.complete ? "" : ", and something was held back"}.`)
            : null,
          life.captures.length
            ? h("ol", { class: "captures" }, life.captures.map(capture))
            : h("p", { class: "soft small" }, life.alive ? "Nothing of it had to be written down: its record says the same." : ""),
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
    h("p", { class: "small" }, h("strong", {}, `Write ${number(each.sequence)}`), each.now ? h("span", { class: "soft" }, ", as it is kept now") : null, " ", h("span", { class: "soft" }, ago(each.at))),
    each.changes.length
      ? h("ul", { class: "diff mono", "aria-label": `What write ${each.sequence} changed` }, changes.map(change), each.changes.length > changes.length ? h("li", { class: "soft" }, `and ${number(each.changes.length - changes.length)} more`) : null)
      : h("p", { class: "soft small" }, "the same keys"),
  );
}

function change({ key, before, after }) {
  if (before === null) return h("li", { class: "plus" }, h("span", { class: "hidden" }, "added "), `${key}=${after}`);
  if (after === null) return h("li", { class: "minus" }, h("span", { class: "hidden" }, "removed "), `${key}=${before}`);
  return h("li", { class: "differs" }, h("span", { class: "hidden" }, "changed "), `${key}=`, h("del", {}, before), h("span", { class: "hidden" }, " to "), ` `, h("ins", {}, after));
}

function about(value) {
  const rows = [];
  const say = (name, ...what) => rows.push(h("div", {}, h("dt", {}, name), h("dd", {}, what)));
  say("Known by", value.identity ?? "nothing that it says");
  say("Policy", value.policy === "config" ? "the configuration" : `KeepPolicy ${value.policy}`);
  const record = value.record;
  if (!record) say("Record", "none");
  else {
    say("Record", h("span", { class: "mono" }, record.name), record.fault ? ` cannot be trusted: ${record.fault}; ${record.instead}` : "");
    if (record.capturedAt) say("Written", ago(record.capturedAt), record.capturedBy ? [" by ", h("span", { class: "mono" }, record.capturedBy)] : "");
  }
  if (value.next) {
    const given = Object.keys(value.next.given).length;
    const held = value.next.withheld.length ? `, but not ${value.next.withheld.join(", ")}` : "";
    const later = value.next.later.length ? ` (${value.next.later.join(", ")} right after the create)` : "";
    say(value.uid ? "If it left now" : "When it returns", given ? `it would be given ${plural(given, "key")}${later}${held}` : "it would be given nothing");
  }
  return [h("header", {}, h("h2", { id: "facts" }, "About it")), h("dl", { class: "facts" }, rows)];
}
