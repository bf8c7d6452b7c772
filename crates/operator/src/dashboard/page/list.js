// A list of any length: renders only the rows on the screen, and fetches only the parts that were scrolled to.

import { fetchJson } from "./requests.js";
import { h } from "./safe_html.js";

const PART = 100;
const SPARE = 8;
const RETRY = 2000;

export class List {
  /**
   * `head` has the columns: `{ title, sort }`, where `sort` is the name of a column that the list can be sorted by.
   * `row(item)` returns the cells of a row, `open(item)` its address, `sorted(values)` the address of another order.
   */
  constructor({ path, label, head, row, open, sorted, none, counted }) {
    Object.assign(this, { path, row, open, sorted, none, counted, columns: head, parts: new Map(), values: {}, matched: 0, active: -1, drawn: new Map() });
    this.heads = h("tr", { class: "row head", role: "row", "aria-rowindex": "1" });
    this.head = h("thead", { role: "rowgroup" }, this.heads);
    this.space = h("tbody", { class: "space", role: "rowgroup" });
    // The roles are explicit, since a table that is laid out as blocks loses them.
    this.body = h(
      "table",
      { class: "rows", role: "grid", tabindex: "0", "aria-rowcount": "1", "aria-colcount": head.length, onscroll: () => this.draw() },
      h("caption", { class: "hidden" }, label),
      this.head,
      this.space,
    );
    this.body.addEventListener("keydown", (event) => this.key(event) && event.preventDefault());
    this.empty = h("p", { class: "empty", hidden: true });
    this.element = h("div", { class: "card list" }, this.body, this.empty);
    this.drawHead();
    this.watch = new ResizeObserver(() => this.draw(true));
    this.watch.observe(this.body);
  }

  /** Draws the titles of the columns. A column that can be sorted by links to that order. */
  drawHead() {
    const order = this.values.sort || this.columns[0].sort || "";
    const by = order.replace(/^-/, "");
    this.heads.replaceChildren(
      ...this.columns.map(({ title, sort }) => {
        const now = sort && sort === by ? (order.startsWith("-") ? "descending" : "ascending") : null;
        const next = now === "ascending" ? `-${sort}` : sort;
        const text = sort && this.sorted ? h("a", { class: "sort", href: this.sorted({ ...this.values, sort: next }) }, title) : title;
        return h("th", { scope: "col", role: "columnheader", "aria-sort": now }, text);
      }),
    );
  }

  /** Shows the rows that match the values, from the top. */
  search(values) {
    this.values = values;
    this.drawHead();
    this.active = -1;
    this.body.scrollTop = 0;
    this.reload();
  }

  /** Fetches the rows on the screen again. Other parts are fetched when they are scrolled to. */
  async reload() {
    this.turn = (this.turn ?? 0) + 1;
    const turn = this.turn;
    const [first, last] = this.window();
    const parts = new Map();
    try {
      for (let part = Math.floor(first / PART); part <= Math.floor(last / PART); part++) parts.set(part, await this.get(part));
    } catch (error) {
      if (turn !== this.turn) return;
      // Keeps the rows that are shown.
      if (!this.matched) this.showMessage(`${error.message} Retrying …`);
      clearTimeout(this.retryTimer);
      this.retryTimer = setTimeout(() => this.reload(), RETRY);
      return;
    }
    if (turn !== this.turn) return;
    this.parts = new Map([...parts].map(([part, value]) => [part, value.items]));
    this.accept(parts.values().next().value);
    this.draw(true);
  }

  get(part) {
    return fetchJson(this.path, { ...this.values, from: part * PART, count: PART });
  }

  accept(value) {
    this.matched = value.matched;
    this.body.setAttribute("aria-rowcount", value.matched + 1);
    this.space.style.height = `${value.matched * this.height()}px`;
    this.showMessage(value.matched ? null : this.none(this.values, value));
    this.counted(value);
  }

  showMessage(text) {
    this.empty.hidden = !text;
    this.empty.textContent = text ?? "";
    this.body.hidden = Boolean(text);
  }

  height() {
    return parseFloat(getComputedStyle(this.body).getPropertyValue("--row")) || 44;
  }

  window() {
    const height = this.height();
    const first = Math.max(0, Math.floor(this.body.scrollTop / height) - SPARE);
    return [first, Math.max(first, Math.ceil((this.body.scrollTop + (this.body.clientHeight || 600)) / height) + SPARE)];
  }

  /** Draws the rows on the screen, and fetches missing ones. */
  draw(all = false) {
    if (all) {
      this.drawn.forEach((row) => row.remove());
      this.drawn.clear();
      this.space.style.height = `${this.matched * this.height()}px`;
    }
    const [first, end] = this.window();
    const last = Math.min(end, this.matched - 1);
    for (const [index, row] of this.drawn) {
      if (index < first || index > last) {
        row.remove();
        this.drawn.delete(index);
      }
    }
    const height = this.height();
    for (let index = first; index <= last; index++) {
      const item = this.item(index);
      const known = this.drawn.get(index);
      if (known && known.known === Boolean(item)) continue;
      known?.remove();
      const row = h(
        "tr",
        { class: "row", role: "row", id: `row-${index}`, "aria-rowindex": index + 2, "aria-selected": index === this.active ? "true" : "false" },
        item
          ? this.row(item).map((cell, column) => (column ? h("td", { role: "gridcell" }, cell) : h("th", { scope: "row", role: "rowheader" }, cell)))
          : h("td", { role: "gridcell", class: "coming" }, "…"),
      );
      row.known = Boolean(item);
      row.style.transform = `translateY(${index * height}px)`;
      if (item) row.addEventListener("click", (event) => event.target.closest("a") || (location.hash = this.open(item)));
      this.space.append(row);
      this.drawn.set(index, row);
    }
    for (let part = Math.floor(first / PART); part <= Math.floor(last / PART) && last >= 0; part++) this.fetchPart(part);
  }

  item(index) {
    return this.parts.get(Math.floor(index / PART))?.[index % PART];
  }

  /** Fetches a missing part once scrolling has stopped. */
  fetchPart(part) {
    if (this.parts.has(part)) return;
    clearTimeout(this.fetchTimer);
    this.fetchTimer = setTimeout(async () => {
      const turn = this.turn;
      const [first, end] = this.window();
      for (let part = Math.floor(first / PART); part <= Math.floor(Math.min(end, this.matched - 1) / PART); part++) {
        if (this.parts.has(part)) continue;
        const value = await this.get(part).catch(() => null);
        if (!value || turn !== this.turn) return;
        this.parts.set(part, value.items);
        if (value.matched !== this.matched) this.accept(value);
      }
      this.draw();
    }, 40);
  }

  choose(index) {
    this.active = Math.max(0, Math.min(index, this.matched - 1));
    const height = this.height();
    // The head covers the top of the list.
    const [top, room] = [this.active * height, this.body.clientHeight - this.head.offsetHeight];
    if (top < this.body.scrollTop) this.body.scrollTop = top;
    else if (top + height > this.body.scrollTop + room) this.body.scrollTop = top + height - room;
    this.draw();
    this.drawn.forEach((row, index) => row.setAttribute("aria-selected", index === this.active ? "true" : "false"));
    this.body.setAttribute("aria-activedescendant", `row-${this.active}`);
  }

  key(event) {
    if (!this.matched) return false;
    const page = Math.max(1, Math.floor((this.body.clientHeight - this.head.offsetHeight) / this.height()) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1, PageDown: page, PageUp: -page };
    if (event.key in steps) this.choose(this.active < 0 ? 0 : this.active + steps[event.key]);
    else if (event.key === "Home") this.choose(0);
    else if (event.key === "End") this.choose(this.matched - 1);
    else if (event.key === "Enter" && this.item(this.active)) location.hash = this.open(this.item(this.active));
    else return false;
    return true;
  }

  /** Moves from the search field to the first row, and opens it if it is the only one. */
  enter(open) {
    this.body.focus();
    this.choose(0);
    if (open && this.matched === 1 && this.item(0)) location.hash = this.open(this.item(0));
  }

  close() {
    this.watch.disconnect();
    clearTimeout(this.fetchTimer);
    clearTimeout(this.retryTimer);
  }
}

/** Reloads a list after changes, at most once a second. */
export function follower(list) {
  let [timer, last] = [null, 0];
  return {
    changed() {
      timer ??= setTimeout(
        () => {
          [timer, last] = [null, Date.now()];
          list.reload();
        },
        Math.max(0, 1000 - (Date.now() - last)),
      );
    },
    close: () => clearTimeout(timer),
  };
}
