// Commands to copy.

import { h } from "./safe_html.js";

/** A command with a button that copies it. */
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

/** The content of a card with commands. */
export const commands = (list) => [
  h("header", {}, h("h2", { id: "how" }, "Commands")),
  h("p", { class: "soft small" }, "This page is read-only. Copy a command to make a change."),
  h("dl", { class: "commands" }, list.map((each) => h("div", {}, h("dt", {}, each.what), h("dd", {}, command(each.command))))),
];
