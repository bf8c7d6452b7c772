// Names, labels and colours of states. All of them come from the API; see inspect/states.rs.

import { fetchJson } from "./requests.js";
import { h } from "./safe_html.js";

const UNKNOWN = { tone: "muted" };
const RETRY = 1000;

/** `{ nodes, workloads, origins, activities }`, each a Map from a name to `{ tone, label }` in display order. */
const tables = {};

/** Must be called before a view is shown. */
export async function loadStates() {
  for (;;) {
    try {
      const found = await fetchJson("api/states");
      for (const [table, entries] of Object.entries(found)) tables[table] = new Map(entries.map((entry) => [entry.name, entry]));
      return;
    } catch {
      await new Promise((resolve) => setTimeout(resolve, RETRY));
    }
  }
}

export const namesOf = (table) => [...tables[table].keys()];
export const displayOf = (table, name) => tables[table].get(name) ?? { ...UNKNOWN, label: name };

export const pill = (table, name) => {
  const { tone, label } = displayOf(table, name);
  return h("span", { class: `pill tone-${tone}` }, label);
};
export const swatch = (tone) => h("span", { class: `swatch is-${tone}`, "aria-hidden": "true" });
