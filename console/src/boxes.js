// SPDX-License-Identifier: Apache-2.0
//
// All boxes that the person may see, kept up to date by boxd's events.

import { get, path, every } from "./boxd.js";

/** keyOf names a session among those of all owners. */
export const keyOf = (s) => s.owner + "\n" + s.id;

// So many sessions are asked for one by one after their events; for more of them the whole list is.
const single = 8;

// Two looks that are closer than this tell too little of the time of processors, in milliseconds.
const soon = 500;

/** Boxes is the list. It tells "change" when it has changed, and "failure" when it cannot be had. */
export class Boxes extends EventTarget {
    #dirty = new Map();
    #timer = null;
    #before = new Map();
    #signal;

    constructor(events, signal) {
        super();
        this.#signal = signal;
        this.list = new Map();
        /** of everybody, or null while that is not known */
        this.all = null;
        /** boxd is older than the list with usage */
        this.older = false;
        events.addEventListener("event", (e) => this.#event(e.detail), { signal });
        events.addEventListener("state", (e) => e.detail ? this.dispatchEvent(new CustomEvent("failure", { detail: e.detail })) : this.refresh(), { signal });
        // a long list is a long answer
        this.refresh = every(() => 5000 + 10 * this.list.size, () => this.#load(), signal);
        signal.addEventListener("abort", () => clearTimeout(this.#timer));
    }

    /** rows are the sessions, with the share of CPU time that each uses. */
    get rows() {
        return [...this.list.values()];
    }

    async #load() {
        try {
            const text = await this.#ask();
            if (this.#signal.aborted)
                return;
            const now = performance.now(), answer = JSON.parse(text);
            this.list = new Map(answer.sessions.map((s) => [keyOf(s), this.#rate(s, now)]));
            this.#before = new Map(this.rows.filter((s) => s.usage).map((s) => {
                const before = this.#before.get(keyOf(s));
                return [keyOf(s), before && now - before.at <= soon ? before : { cpu: s.usage.cpu_ms, at: now, share: s.cpuShare }];
            }));
            this.dispatchEvent(new CustomEvent("change"));
            performance.measure("boxes:update", { start: now });
        } catch (failure) {
            if (!this.#signal.aborted)
                this.dispatchEvent(new CustomEvent("failure", { detail: failure }));
        }
    }

    /** ask asks for what the person may see, and what boxd has. */
    async #ask() {
        const ask = (all) => get(path("sessions"), { all: all ? "true" : null, usage: this.older ? null : "true" }, { raw: true });
        for (;;) {
            try {
                const answer = await ask(this.all !== false);
                this.all ??= true;
                return answer;
            } catch (failure) {
                if (failure.status === 400 && !this.older)
                    this.older = true;
                else if (failure.status === 403 && this.all === null)
                    this.all = false;
                else
                    throw failure;
            }
        }
    }

    /** rate adds how many processors a session has used since it was last looked at. */
    #rate(s, now) {
        const before = this.#before.get(keyOf(s));
        if (s.usage && before && now - before.at > soon)
            s.cpuShare = Math.max(0, (s.usage.cpu_ms - before.cpu) / (now - before.at));
        else if (before)
            s.cpuShare = before.share;
        return s;
    }

    #event(e) {
        if (e.type === "gap" || e.type === "config.reloaded") {
            this.refresh();
            return;
        }
        if (!e.session || e.type.startsWith("exec."))
            return; // there may be thousands a second, and the next list tells how many run
        this.#dirty.set(e.owner + "\n" + e.session, e);
        this.#timer ??= setTimeout(() => this.#settle(), 150);
    }

    async #settle() {
        this.#timer = null;
        const dirty = [...this.#dirty];
        this.#dirty.clear();
        if (dirty.length > single) {
            this.#timer = setTimeout(() => {
                this.#timer = null;
                this.refresh();
            }, this.list.size);
            return;
        }
        await Promise.all(dirty.map(async ([key, e]) => {
            try {
                const s = await get(path("sessions", e.session), { owner: e.owner });
                this.list.set(key, this.#rate(s, performance.now()));
            } catch (failure) {
                if (failure.status === 404)
                    this.list.delete(key);
            }
        }));
        if (!this.#signal.aborted)
            this.dispatchEvent(new CustomEvent("change"));
    }
}
