// SPDX-License-Identifier: Apache-2.0
//
// What pages are made of: tables, bars, dialogs, notices.

import { h, show, button, uniqueId } from "./dom.js";
import { _, fill, percent } from "./text.js";

/** bar shows how much of a limit is used. share is 0 to 1, or null where nothing is known; label says it in words. */
export function bar(share, label, title) {
    if (share === null)
        return h("span", { class: "muted", title }, label);
    const level = share >= 0.95 ? "high" : share >= 0.8 ? "raised" : "";
    return h("div", { class: "bar " + level, title },
        h("div", { class: "bar-track", role: "meter", "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.round(100 * Math.min(1, share)), "aria-valuetext": label + " (" + percent(share) + ")", "aria-label": title },
            h("div", { class: "bar-fill", style: "width:" + Math.max(share > 0 ? 1 : 0, Math.min(100, 100 * share)).toFixed(1) + "%" })),
        h("span", { class: "bar-label", "aria-hidden": true }, label));
}

/** tag is a word with a colour: "ok", "warn", "fail", "info" or none. */
export function tag(text, level) {
    return h("span", { class: "tag " + (level ?? "") }, text);
}

/** facts is a list of names and values; those without a value are left out. */
export function facts(list) {
    return h("dl", { class: "facts" }, list.filter(([, v]) => v !== null && v !== undefined && v !== "" && v !== false).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

/**
 * Table shows rows, and changes only what has changed. A column has a title, a value that decides whether a cell is drawn
 * anew and how rows are sorted, and may have draw, which makes the content of a cell.
 */
export class Table {
    /** rows have the key that key tells; size is how many of them are shown at a time. */
    constructor({ caption, columns, key, empty, sort, size = 100 }) {
        this.columns = columns;
        this.key = key;
        this.size = size;
        this.page = 0;
        this.rows = [];
        this.shown = new Map();
        this.sort = sort ?? { column: null, up: true };
        this.empty = h("p", { class: "empty" }, empty);
        this.body = h("tbody");
        this.heads = columns.map((c) => h("th", { scope: "col", class: c.class },
            c.value && c.title ? h("button", { type: "button", class: "sort", onclick: () => this.sortBy(c) }, c.title, h("span", { class: "arrow", "aria-hidden": true })) : c.title));
        this.table = h("table", {}, h("caption", { class: "hidden-text" }, caption), h("thead", {}, h("tr", {}, this.heads)), this.body);
        this.where = h("span", { role: "status" });
        this.back = button("‹", () => this.turn(-1), { "aria-label": _("Previous page"), class: "plain" });
        this.next = button("›", () => this.turn(1), { "aria-label": _("Next page"), class: "plain" });
        this.pager = h("nav", { class: "pager", "aria-label": _("Pages") }, this.back, this.where, this.next);
        this.element = h("div", { class: "table" }, h("div", { class: "scroll", tabindex: -1 }, this.table), this.empty, this.pager);
    }

    sortBy(column) {
        this.sort = { column, up: this.sort.column === column ? !this.sort.up : true };
        this.update(this.rows);
    }

    turn(by) {
        this.page += by;
        this.update(this.rows);
    }

    /** update shows these rows instead of those before. */
    update(rows) {
        this.rows = rows;
        const { column, up } = this.sort;
        let list = rows;
        if (column) {
            const by = column.order ?? column.value;
            const keys = new Map(rows.map((r) => [r, by(r)]));
            const compare = (a, b) => a === b ? 0 : a === null || a === undefined ? 1 : b === null || b === undefined ? -1 : a < b ? -1 : 1;
            list = [...rows].sort((a, b) => (up ? 1 : -1) * compare(keys.get(a), keys.get(b)));
        }
        const pages = Math.max(1, Math.ceil(list.length / this.size));
        this.page = Math.max(0, Math.min(this.page, pages - 1));
        const part = list.slice(this.page * this.size, (this.page + 1) * this.size);
        const focused = this.body.contains(document.activeElement) ? document.activeElement : null;
        const before = this.shown;
        this.shown = new Map();
        const trs = part.map((row) => {
            const key = this.key(row);
            const entry = before.get(key) ?? this.#make();
            this.#fill(entry, row);
            this.shown.set(key, entry);
            return entry.tr;
        });
        before.forEach((entry, key) => this.shown.has(key) || entry.tr.remove());
        trs.forEach((tr, i) => this.body.children[i] === tr || this.body.insertBefore(tr, this.body.children[i] ?? null));
        if (focused && document.activeElement !== focused && this.body.contains(focused))
            focused.focus();
        this.heads.forEach((th, i) => this.columns[i] === column ? th.setAttribute("aria-sort", up ? "ascending" : "descending") : th.removeAttribute("aria-sort"));
        this.table.hidden = list.length === 0;
        this.empty.hidden = list.length > 0;
        this.pager.hidden = pages < 2;
        this.where.textContent = fill(_("$0–$1 of $2"), this.page * this.size + 1, this.page * this.size + part.length, list.length);
        this.back.disabled = this.page === 0;
        this.next.disabled = this.page === pages - 1;
    }

    #make() {
        const tds = this.columns.map((c, i) => h(i === 0 ? "th" : "td", { class: c.class, scope: i === 0 ? "row" : null }));
        return { tr: h("tr", {}, tds), tds, values: [] };
    }

    #fill(entry, row) {
        this.columns.forEach((c, i) => {
            const value = String((c.version ?? c.value)?.(row) ?? "");
            if (entry.values[i] === value)
                return;
            entry.values[i] = value;
            show(entry.tds[i], c.draw ? c.draw(row) : value);
        });
    }
}

/** dialog shows a form over the page. onSubmit may throw, and then the dialog stays with what was wrong. */
export function dialog({ title, body, submit, danger, onSubmit, wide }) {
    const trouble = h("div", { role: "alert" });
    const label = uniqueId();
    const go = submit && h("button", { type: "submit", class: danger ? "danger" : "primary" }, submit);
    const close = button(submit ? _("Cancel") : _("Close"), () => box.close());
    const form = h("form", { method: "dialog", novalidate: true, onsubmit: async (e) => {
        e.preventDefault();
        go.disabled = true;
        show(trouble);
        try {
            await onSubmit();
            box.close();
        } catch (failure) {
            show(trouble, notice(failure));
        }
        go.disabled = false;
    } }, h("h2", { id: label }, title), h("div", { class: "dialog-body" }, body), trouble, h("div", { class: "dialog-foot" }, go, close));
    const before = document.activeElement;
    const box = h("dialog", { "aria-labelledby": label, class: wide ? "wide" : "", onclose: () => {
        box.remove();
        before?.focus?.();
    } }, form);
    document.body.append(box);
    box.showModal();
    return box;
}

/** confirm asks before something that cannot be undone. */
export function confirm(title, text, submit, act) {
    return dialog({ title, body: h("p", {}, text), submit, danger: true, onSubmit: act });
}

/** notice tells of a failure, with what to do about it. */
export function notice(failure, ...more) {
    return h("div", { class: "notice fail" }, h("strong", {}, failure.message), failure.hint && h("p", {}, failure.hint), more);
}

/** info is a notice that is no failure. */
export function info(level, title, ...more) {
    return h("div", { class: "notice " + level }, h("strong", {}, title), more);
}

let region = null;

/** toast says for a while that something has been done, or that it has failed. */
export function toast(text, level = "ok") {
    if (!region) {
        region = h("div", { class: "toasts", role: "status", "aria-live": "polite" });
        document.body.append(region);
    }
    const one = h("div", { class: "notice " + level }, text, button("×", () => one.remove(), { class: "plain", "aria-label": _("Close") }));
    region.append(one);
    setTimeout(() => one.remove(), level === "fail" ? 12000 : 5000);
}

/** attempt does something for a button and tells if it has failed. */
export async function attempt(act, done) {
    try {
        await act();
        if (done)
            toast(done);
        return true;
    } catch (failure) {
        toast([failure.message, failure.hint].filter(Boolean).join(" – "), "fail");
        return false;
    }
}

/** field is an input with its label, and a line below it. */
export function field(label, input, help) {
    const id = uniqueId(), about = uniqueId();
    input.id = id;
    if (help)
        input.setAttribute("aria-describedby", about);
    return h("div", { class: "field" }, h("label", { for: id }, label), input, h("div", { class: "help", id: about }, help));
}

/** tabs switches between views by links; the current one is named. */
export function tabs(label, list, current) {
    return h("nav", { class: "tabs", "aria-label": label }, h("ul", {}, list.map(([name, text, href]) =>
        h("li", {}, h("a", { href, "aria-current": name === current ? "page" : null }, text)))));
}

/** section is a part of a page with a heading. */
export function section(title, ...children) {
    const id = uniqueId();
    return h("section", { class: "card", "aria-labelledby": id }, h("h2", { id }, title), children);
}
