// Addresses within the page.

const query = (values) => {
  const given = Object.entries(values).filter(([, value]) => value);
  return given.length ? `?${new URLSearchParams(given)}` : "";
};
export const at = (view, values = {}) => `#/${view}${query(values)}`;
export const nodeAt = (name, values = {}) => `#/node/${encodeURIComponent(name)}${query(values)}`;
export const workloadAt = (kind, namespace, name) => `#/workload/${[kind, namespace, name].map(encodeURIComponent).join("/")}`;
export const workloadByKey = (key) => workloadAt(...key.split("/"));

/** Replaces the address without a new entry in the browser's history. */
export const put = (address) => {
  if (location.hash !== address) history.replaceState(null, "", address);
};
