// Requests to the API.

export async function fetchJson(path, values, signal) {
  const response = await fetch(`${path}?${new URLSearchParams(values ?? {})}`, { signal, cache: "no-store" });
  const value = await response.json().catch(() => ({}));
  if (!response.ok) throw Object.assign(new Error(value.problem ?? `The server responded with status ${response.status}.`), { status: response.status });
  return value;
}

const PAUSES = [1000, 2000, 4000, 8000];

/**
 * Returns a function that sends a request and shows its result. A failed request is sent again until it succeeds.
 * Until then its message is shown beside the last result.
 */
export function loader(problem, body, request, show) {
  let [known, running, closed, attempt, timer] = [false, false, false, 0, null];
  async function load() {
    if (running || closed) return;
    running = true;
    clearTimeout(timer);
    try {
      const value = await request();
      [known, attempt] = [true, 0];
      problem.hidden = true;
      body.hidden = false;
      show(value);
    } catch (error) {
      const missing = error.status === 404;
      problem.hidden = false;
      problem.textContent = missing ? error.message : `${error.message} Retrying …`;
      body.hidden = !known || missing;
      if (!missing && !closed) timer = setTimeout(load, PAUSES[Math.min(attempt++, PAUSES.length - 1)]);
    } finally {
      running = false;
    }
  }
  load.close = () => {
    closed = true;
    clearTimeout(timer);
  };
  return load;
}
