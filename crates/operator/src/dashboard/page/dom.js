// Elements from values. Text is only ever text: nothing here, or anywhere on this page, turns a string into markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** Puts new children into an element only where what they show has changed: focus and selection stay otherwise. */
export function refresh(element, value, make) {
  const text = JSON.stringify(value);
  if (element.shown === text) return;
  element.shown = text;
  element.replaceChildren(...[make(value)].flat(Infinity).filter(Boolean));
}

/** A command to be copied. */
export function command(text) {
  const button = h("button", { type: "button", "aria-label": `Copy: ${text}` }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select it";
      getSelection().selectAllChildren(button.previousSibling);
    }
    setTimeout(() => (button.textContent = "Copy"), 1600);
  });
  return h("div", { class: "copy" }, h("code", {}, text), button);
}

/** What a card says of the commands that change what a view shows. */
export const commands = (list) => [
  h("header", {}, h("h2", { id: "how" }, "To change something")),
  h("p", { class: "soft small" }, "This page changes nothing. These commands do."),
  h("dl", { class: "commands" }, list.map((each) => h("div", {}, h("dt", {}, each.what), h("dd", {}, command(each.command))))),
];

export async function ask(path, values, signal) {
  const answer = await fetch(`${path}?${new URLSearchParams(values ?? {})}`, { signal, cache: "no-store" });
  const value = await answer.json().catch(() => ({}));
  if (!answer.ok) throw Object.assign(new Error(value.problem ?? `The server answered ${answer.status}.`), { status: answer.status });
  return value;
}

/** Shows answers to questions: the newest one, or what went wrong beside the one before. */
export function answers(problem, body, show) {
  let known = false;
  return async (question) => {
    try {
      const value = await question;
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
