// Escapes HTML by construction: elements are built from values, and every string becomes a text node or an attribute.
// No function of this page turns a string into markup.

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

/** Replaces the children of an element only if the value changed, which preserves focus and selection. */
export function refresh(element, value, render) {
  const text = JSON.stringify(value);
  if (element.shown === text) return;
  element.shown = text;
  element.replaceChildren(...[render(value)].flat(Infinity).filter(Boolean));
}
