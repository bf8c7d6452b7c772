// The overview: nodes, problems, churn, workloads, replicas and activity.

import { churn, shownSeconds } from "./chart.js";
import { command } from "./commands.js";
import { ago, lastSeen, number, plural, span } from "./format.js";
import { at, nodeAt, put, workloadByKey } from "./links.js";
import { h, refresh } from "./safe_html.js";
import { displayOf, namesOf, swatch } from "./states.js";
import { NOT_SYNCED } from "./workloads.js";

const SHOWN = 40;

export function overview(_, query) {
  const headline = h("div", { class: "headline" });
  const attention = h("section", { class: "card attention", "aria-labelledby": "attention" });
  const chart = h("section", { class: "card", "aria-labelledby": "churn" });
  const workloads = h("section", { class: "card", "aria-labelledby": "placement" });
  const members = h("section", { class: "card", "aria-labelledby": "members" });
  const list = h("ol", { class: "feed", "aria-live": "off" });
  const choices = h("div", { class: "chips", role: "group", "aria-label": "Filter" });
  const feed = h(
    "section",
    { class: "card happens", "aria-labelledby": "happens" },
    h("header", {}, h("h2", { id: "happens" }, "Activity"), choices),
    list,
  );
  const element = h(
    "div",
    { class: "overview" },
    headline,
    h("div", { class: "columns" }, h("div", { class: "column" }, attention, chart, workloads, members), feed),
  );

  let which = query.get("feed") === "all" ? "all" : "restores";
  let recent = [];
  const wanted = (happening) => which === "all" || ["restored", "quarantined"].includes(happening.what);

  function choose(next) {
    which = next;
    put(at("", { feed: which === "all" ? "all" : "" }));
    draw();
  }
  function draw() {
    choices.replaceChildren(
      ...[["restores", "Restores"], ["all", "Everything"]].map(([name, text]) =>
        h("button", { class: "chip", type: "button", "aria-current": which === name ? "true" : null, onclick: () => choose(name) }, text),
      ),
    );
    const shown = recent.filter(wanted).slice(0, SHOWN);
    if (!shown.length) {
      list.replaceChildren(h("li", { class: "empty" }, which === "all" ? "No activity yet." : "No node was restored yet."));
      return;
    }
    // Keeps existing elements, so that only new ones are animated.
    const known = new Map([...list.children].map((item) => [item.dataset.number, item]));
    list.replaceChildren(...shown.map((happening) => known.get(String(happening.number)) ?? line(happening)));
  }

  let due = false;
  return {
    element,
    overview(value) {
      refresh(headline, [value.nodes, value.records, value.synced, value.stale], () => head(value));
      refresh(attention, value.attention, () => needs(value.attention));
      refresh(chart, value.churn, () => churned(value.churn));
      refresh(workloads, value.workloads, () => placed(value.workloads));
      refresh(members, [value.groups, value.unread], () => works(value));
      const newest = recent[0]?.number ?? 0;
      if (!recent.length || value.recent.some((happening) => happening.number > newest)) {
        recent = value.recent;
        draw();
      }
    },
    happened(happening) {
      if (recent.some((known) => known.number >= happening.number)) return;
      recent = [happening, ...recent].slice(0, 200);
      // Draws at most once per frame.
      if (due) return;
      due = true;
      requestAnimationFrame(() => {
        due = false;
        draw();
      });
    },
    again() {
      recent = [];
    },
    search(query) {
      which = query.get("feed") === "all" ? "all" : "restores";
      draw();
    },
  };
}

function head({ nodes, records, synced, stale }) {
  if (!synced && stale) return [h("h1", {}, "Nodes and records could not be loaded"), h("p", { class: "soft" }, `${stale.why}. Retrying …`)];
  if (!synced) return [h("h1", {}, "Loading nodes and records …"), h("p", { class: "soft" }, "This takes a moment in a large cluster.")];
  const all = nodes.current === nodes.live;
  const one = nodes.live === 1;
  const title = stale
    ? `${!nodes.live ? "No nodes were known" : all && one ? "The one node was current" : `${number(nodes.current)} of ${plural(nodes.live, "node")} were current`}${lastSeen(stale)}`
    : !nodes.live
    ? "There are no nodes"
    : all
      ? nodes.live === 1
        ? "The one node is current"
        : `All ${number(nodes.live)} nodes are current`
      : `${number(nodes.current)} of ${plural(nodes.live, "node")} are current`;
  const away = records.away ? `, ${number(records.away)} of deleted nodes` : "";
  const parts = namesOf("nodes").filter((word) => nodes.states[word]);
  const bar = h("div", { class: "proportions", "aria-hidden": "true" });
  for (const word of parts) {
    const part = h("span", { class: `is-${displayOf("nodes", word).tone}` });
    part.style.flexGrow = nodes.states[word];
    bar.append(part);
  }
  return [
    h("h1", {}, title),
    h("p", { class: "soft" }, `${plural(records.all, "record")}${away}.`),
    parts.length ? bar : null,
    h(
      "ul",
      { class: "legend" },
      parts.map((word) => {
        const { tone, label } = displayOf("nodes", word);
        return h("li", {}, h("a", { class: "quiet", href: at("nodes", { state: word }) }, swatch(tone), `${number(nodes.states[word])} ${label}`));
      }),
    ),
  ];
}

function needs(matters) {
  const title = h("h2", { id: "attention" }, "Needs attention");
  if (!matters.length) return [h("header", {}, title), h("p", { class: "calm" }, swatch("good"), "Nothing needs attention.")];
  return [
    h("header", {}, title),
    h(
      "ul",
      { class: "matters" },
      matters.map((matter) =>
        h(
          "li",
          { class: `matter is-${matter.level}` },
          h("h3", {}, matter.link ? h("a", { href: matter.link }, matter.title) : matter.title),
          h("p", { class: "soft small" }, matter.detail),
          matter.about.length
            ? h("p", { class: "names mono" }, matter.about.map((name) => h("a", { href: name.includes("/") ? workloadByKey(name) : nodeAt(name) }, name)))
            : null,
          command(matter.command),
        ),
      ),
    ),
  ];
}

function churned({ seconds, intervals }) {
  const sum = (place) => intervals.reduce((total, counts) => total + counts[place], 0);
  const [came, went, restored] = [sum(0), sum(1), sum(2)];
  const [whole, counted] = [shownSeconds(intervals, seconds), intervals.length * seconds];
  const since = counted < whole ? `, counted for ${span(counted)}` : "";
  return [
    h("header", {}, h("h2", { id: "churn" }, "Churn"), h("p", { class: "soft small" }, `the last ${span(whole)}${since}`)),
    churn(intervals, seconds),
    h(
      "ul",
      { class: "legend" },
      h("li", {}, swatch("good"), `${number(came)} created`),
      h("li", {}, swatch("changed"), `${number(went)} deleted`),
      h("li", {}, h("span", { class: "restored-key", "aria-hidden": "true" }), `${number(restored)} restored`),
    ),
  ];
}

function placed(value) {
  const header = h("header", {}, h("h2", { id: "placement" }, "Placement"), value.all ? h("a", { href: at("workloads") }, plural(value.all, "workload")) : null);
  if (!value.enabled) return [header, h("p", { class: "soft" }, "Placement is disabled.")];
  if (!value.all) return [header, h("p", { class: "soft" }, value.synced ? "No workload has placement annotations." : NOT_SYNCED)];
  const bar = h("div", { class: "proportions thick", "aria-hidden": "true" });
  for (const [name, count] of [["steady", value.onDemand], ["spot", value.spot]]) {
    if (!count) continue;
    const part = h("span", { class: `is-${name}` });
    part.style.flexGrow = count;
    bar.append(part);
  }
  const rest = [
    value.drift ? `${number(value.drift)} in the wrong class` : null,
    value.fallback ? `${number(value.fallback)} on-demand: no spot capacity` : null,
  ].filter(Boolean);
  return [
    header,
    bar,
    h(
      "ul",
      { class: "legend" },
      h("li", {}, swatch("info"), `${number(value.onDemand)} on-demand`),
      h("li", {}, swatch("spot"), `${number(value.spot)} on spot`),
      h("li", { class: "soft" }, rest.length ? rest.join(", ") : "all as requested"),
    ),
  ];
}

function works({ groups, unread }) {
  const title = h("header", {}, h("h2", { id: "members" }, "Replicas"));
  if (!groups) return [title, h("p", { class: "soft" }, unread ?? "")];
  if (!groups.length) return [title, h("p", { class: "soft" }, "No replica holds a Lease.")];
  return [
    title,
    h(
      "ul",
      { class: "members" },
      groups.flatMap((group) =>
        group.members.map((member) => {
          const held = group.shards.filter((shard) => shard.held && shard.holder === member.identity).length;
          const does = !member.alive ? "no heartbeat" : group.shards.length === 1 ? (held ? "leader" : "standby") : `${held} of ${plural(group.shards.length, "shard")}`;
          return h("li", {}, swatch(member.alive ? "good" : "bad"), h("span", { class: "mono" }, member.identity), h("span", { class: "soft small" }, does));
        }),
      ),
    ),
  ];
}

function line(happening) {
  const { tone, label } = displayOf("activities", happening.what);
  const keys = happening.what === "restored" || happening.what === "captured" ? plural(happening.keys, "key") : "";
  const more = happening.keys - happening.some.length;
  const words = keys ? `${label}: ${keys}` : label;
  return h(
    "li",
    { class: "happening", "data-number": happening.number },
    swatch(tone),
    h(
      "div",
      {},
      h("p", {}, h("a", { class: "name", href: nodeAt(happening.node) }, happening.node), ` ${words}`),
      happening.some.length
        ? h("p", { class: "tags" }, happening.some.map((pair) => h("span", { class: "tag mono" }, pair)), more > 0 ? h("span", { class: "soft small" }, `and ${number(more)} more`) : null)
        : null,
    ),
    h("span", { class: "soft small when" }, ago(happening.at)),
  );
}
