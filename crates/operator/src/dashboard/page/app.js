// The frame of the page: shows the view of the address, and passes updates of the stream to it.

import { updateAges } from "./format.js";
import { at } from "./links.js";
import { node } from "./node.js";
import { nodes } from "./nodes.js";
import { overview } from "./overview.js";
import { policies } from "./policies.js";
import { loadStates } from "./states.js";
import { Stream } from "./stream.js";
import { followTheme } from "./theme.js";
import { workload } from "./workload.js";
import { workloads } from "./workloads.js";

const VIEWS = { "": overview, nodes, node, workloads, workload, policies };
const PARENT = { "": "overview", nodes: "nodes", node: "nodes", workloads: "workloads", workload: "workloads", policies: "policies" };
const TITLE = { "": "Overview", nodes: "Nodes", workloads: "Workloads", policies: "Policies" };

const main = document.getElementById("content");
const find = document.getElementById("find");
const page = { view: null, path: null, overview: null };

/** `#/node/a%2Fb?origin=kept` as `{ parts: ["node", "a/b"], query }`. */
function address() {
  const [path, text] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const decoded = (part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  };
  return { path, parts: path.split("/").map(decoded), query: new URLSearchParams(text ?? "") };
}

function show() {
  const { path, parts, query } = address();
  if (page.view && page.path === path && page.view.search) {
    page.view.search(query);
    return;
  }
  const known = Object.hasOwn(VIEWS, parts[0]) ? parts[0] : "";
  page.view?.close?.();
  page.path = path;
  page.view = VIEWS[known](parts.slice(1), query);
  main.replaceChildren(page.view.element);
  page.title = TITLE[known] ?? parts.at(-1);
  showTitle();
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === PARENT[known]) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (page.overview) page.view.overview?.(page.overview);
  window.scrollTo(0, 0);
}

const connection = { stream: "connecting", lastEvent: null, stale: null };

/** Shows whether the data is live: the page is connected to Perennial, and the API server delivers nodes and records to Perennial. */
function showConnection() {
  const { stream, lastEvent, stale } = connection;
  const state = stream === "live" && stale ? "stale" : stream;
  const broken = document.getElementById("broken");
  document.getElementById("live").dataset.is = state;
  document.getElementById("live-text").textContent = { live: "Live", stale: "Stale", connecting: "Connecting" }[state] ?? "Not live";
  broken.hidden = state === "live" || state === "connecting";
  const shown = (time) => (time ? ` The data shown is from ${time.toLocaleTimeString()}.` : "");
  if (state === "broken") broken.textContent = `The connection to Perennial is lost.${shown(lastEvent)} Reconnecting …`;
  if (state === "stale") broken.textContent = `${stale.title} (${stale.why}).${shown(stale.since && new Date(stale.since))} Retrying …`;
}

/** Shows the names of the cluster and of the context in the header and in the title. */
function showCluster({ cluster, context }) {
  const element = document.getElementById("cluster");
  page.cluster = cluster ?? context;
  element.hidden = !page.cluster;
  element.textContent = cluster && context && cluster !== context ? `${cluster} (context ${context})` : (page.cluster ?? "");
  element.title = element.textContent;
  showTitle();
}

function showTitle() {
  document.title = [page.title, page.cluster, "Perennial"].filter(Boolean).join(" · ");
}

followTheme(document.getElementById("theme"));
await loadStates();
new Stream({
  state: (stream, lastEvent) => {
    Object.assign(connection, { stream, lastEvent });
    showConnection();
  },
  overview: (value) => {
    connection.stale = value.stale;
    showConnection();
    page.overview = value;
    showCluster(value);
    const from = value.servedBy === "operator" ? "served by the operator" : "served by perennial dashboard";
    document.getElementById("about").textContent = `Perennial ${value.version}, ${from}. Read-only. Records are in ${value.namespace}.`;
    page.view?.overview?.(value);
  },
  happened: (value) => page.view?.happened?.(value),
  missed: () => page.view?.again?.(),
});

// Keyboard.
const keys = document.getElementById("keys");
let before = "";
document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.closest?.("input, textarea, select");
  if (typing) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const combined = before + event.key;
  before = event.key === "g" ? "g" : "";
  const go = { go: "#/", gn: "#/nodes", gw: "#/workloads", gp: "#/policies" }[combined];
  if (go) location.hash = go;
  else if (event.key === "/") find.focus();
  else if (event.key === "?") keys.showModal();
  else if (event.key === "u" && ["node", "workload"].includes(address().parts[0])) {
    location.hash = page.list?.[address().parts[0]] ?? `#/${address().parts[0]}s`;
  } else if (page.view?.key?.(event)) {
    // Handled by the view.
  } else return;
  event.preventDefault();
});
document.getElementById("keys-open").addEventListener("click", () => keys.showModal());
document.getElementById("skip").addEventListener("click", () => main.focus());
find.addEventListener("input", () => {
  const { parts, query } = address();
  // Other filters stay.
  const filters = parts[0] === "nodes" ? Object.fromEntries(query) : {};
  const next = at("nodes", { ...filters, q: find.value.trim() });
  if (parts[0] === "nodes") {
    history.replaceState(null, "", next);
    show();
  } else if (find.value.trim()) location.hash = next;
});
find.addEventListener("keydown", (event) => {
  if (event.key === "Enter" || event.key === "ArrowDown") {
    event.preventDefault();
    find.blur();
    page.view?.enter?.(event.key === "Enter");
  }
});

window.addEventListener("hashchange", () => {
  const { parts, query } = address();
  // `u` leads back to the list with its filter.
  if (parts[0] === "nodes") page.list = { ...page.list, node: location.hash };
  if (parts[0] === "workloads") page.list = { ...page.list, workload: location.hash };
  if (document.activeElement !== find) find.value = parts[0] === "nodes" ? (query.get("q") ?? "") : "";
  show();
});
setInterval(updateAges, 1000);
{
  const { parts, query } = address();
  if (parts[0] === "nodes") find.value = query.get("q") ?? "";
}
show();
