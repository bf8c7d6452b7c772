// Requests to the API.

export async function fetchJson(path, values, signal) {
  const response = await fetch(`${path}?${new URLSearchParams(values ?? {})}`, { signal, cache: "no-store" });
  const value = await response.json().catch(() => ({}));
  if (!response.ok) throw Object.assign(new Error(value.problem ?? `The server responded with status ${response.status}.`), { status: response.status });
  return value;
}

/** Returns a function that shows the result of a request. On an error it shows the message beside the last result. */
export function resultView(problem, body, show) {
  let known = false;
  return async (request) => {
    try {
      const value = await request;
      known = true;
      problem.hidden = true;
      body.hidden = false;
      show(value);
    } catch (error) {
      problem.hidden = false;
      problem.textContent = error.message;
      body.hidden = !known || error.status === 404;
    }
  };
}
