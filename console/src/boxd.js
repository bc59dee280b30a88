// SPDX-License-Identifier: Apache-2.0
//
// Requests to boxd, over its socket and as the person who is logged in: the kernel tells boxd who that is.

const cockpit = window.cockpit;

// The manifest has the paths; an administrator can change them in /etc/cockpit/boxd.override.json.
const manifest = cockpit.manifests?.boxd ?? {};

/** socket is the path of boxd's socket. */
export const socket = manifest.socket ?? "/run/boxd/boxd.sock";

/** auditDirectory is where boxd has its audit log. */
export const auditDirectory = manifest.audit ?? "/var/lib/boxd/audit";

/** Failure is why a request failed: boxd's answer, or that there is none. */
export class Failure extends Error {
    constructor(exception, body) {
        let problem = null;
        try {
            problem = JSON.parse(body);
        } catch {
            // not boxd's: a text, or nothing
        }
        super(problem?.detail || exception.message || String(exception));
        this.status = problem?.status ?? exception.status ?? 0;
        this.kind = String(problem?.type ?? "").split(":").pop();
        this.field = problem?.field;
        this.hint = problem?.hint;
        this.problem = problem;
        // why there is no answer: "not-found", "access-denied", … of Cockpit
        this.transport = problem ? null : exception.problem ?? null;
    }
}

let client = null;

function http() {
    client ??= cockpit.http({ unix: socket, superuser: null });
    return client;
}

function strip(params) {
    return Object.fromEntries(Object.entries(params ?? {}).filter(([, v]) => v !== undefined && v !== null && v !== ""));
}

/** path makes a path of segments, each of which may have any characters. */
export function path(...segments) {
    return "/v1/" + segments.map(encodeURIComponent).join("/");
}

/** request makes one request, and is the body of the answer: what its JSON says, with raw its text, with binary its bytes. */
export function request(method, where, { params, body, binary, raw, headers } = {}) {
    return new Promise((resolve, reject) => {
        const json = body !== undefined && !(body instanceof Uint8Array) && typeof body !== "string";
        const r = http().request({
            method, path: where, params: strip(params), binary,
            headers: { ...(json ? { "Content-Type": "application/json" } : {}), ...headers },
            body: json ? JSON.stringify(body) : body ?? "",
        });
        r.then((data) => {
            if (binary || raw)
                return resolve(data);
            try {
                resolve(data === "" ? null : JSON.parse(data));
            } catch {
                resolve(data);
            }
        });
        r.catch((ex, data) => reject(new Failure(ex, data instanceof Uint8Array ? new TextDecoder().decode(data) : data)));
    });
}

/** get, post, put, patch and remove are requests by their method. */
export const get = (where, params, more) => request("GET", where, { params, ...more });
export const post = (where, body, params) => request("POST", where, { body: body ?? {}, params });
export const put = (where, body, params) => request("PUT", where, { body: body ?? {}, params });
export const patch = (where, body, params) => request("PATCH", where, { body, params });
export const remove = (where, params) => request("DELETE", where, { params });

/**
 * lines follows an answer that never ends, and calls onLine with each line of it. It returns what closes it;
 * onEnd is called with a Failure, or with null at the end.
 */
export function lines(where, params, onLine, onEnd) {
    let rest = "";
    const r = http().request({ method: "GET", path: where, params: strip(params), body: "" });
    r.stream((text) => {
        const parts = (rest + text).split("\n");
        rest = parts.pop();
        parts.forEach(onLine);
    });
    r.then(() => onEnd?.(null));
    r.catch((ex, data) => ex.problem === "cancelled" ? null : onEnd?.(new Failure(ex, data ?? rest)));
    return () => r.close("cancelled");
}

/** hidden reports whether nobody sees the page: in Cockpit it may be behind another one. */
export const hidden = () => cockpit.hidden || document.visibilityState === "hidden";

/** onVisibility calls a function when the page is hidden or shown, until signal. */
export function onVisibility(call, signal) {
    const on = () => call(!hidden());
    document.addEventListener("visibilitychange", on);
    cockpit.addEventListener("visibilitychange", on);
    signal.addEventListener("abort", () => {
        document.removeEventListener("visibilitychange", on);
        cockpit.removeEventListener("visibilitychange", on);
    });
}

/**
 * every calls an async function now and then again each time so many milliseconds after its end, or as many as a function says, until signal. While
 * the page is hidden it does not: boxd ends when nobody asks it anything, and may.
 */
export function every(milliseconds, call, signal) {
    let timer = null, running = false, again = false;
    const run = async () => {
        clearTimeout(timer);
        if (running) {
            again = true;
            return;
        }
        running = true;
        do {
            again = false;
            try {
                await call();
            } catch (err) {
                console.error(err);
            }
        } while (again && !signal.aborted);
        running = false;
        if (!signal.aborted && !hidden())
            timer = setTimeout(run, typeof milliseconds === "function" ? milliseconds() : milliseconds);
    };
    onVisibility((visible) => visible ? run() : clearTimeout(timer), signal);
    signal.addEventListener("abort", () => clearTimeout(timer));
    if (!hidden())
        run();
    return run;
}

// boxd sends a comment every 15 s. A stream that is silent for longer is dead: nobody tells when boxd was killed.
const silence = 35000;

/** Events follows boxd's events while the page is seen, and goes on where it was after any break. */
export class Events extends EventTarget {
    #last = "latest";
    #close = null;
    #timer = null;
    #wait = 500;
    #quiet = silence;

    /** run follows until signal. Listeners get "event" with detail, and "state" with a Failure or null. */
    run(signal, quiet) {
        this.#quiet = quiet ?? silence;
        onVisibility((visible) => visible ? this.#open() : this.#end(), signal);
        signal.addEventListener("abort", () => this.#end());
        if (!hidden())
            this.#open();
    }

    #end() {
        clearTimeout(this.#timer);
        this.#close?.();
        this.#close = null;
    }

    #alive() {
        clearTimeout(this.#timer);
        this.#timer = setTimeout(() => this.#open(), this.#quiet);
    }

    #open() {
        this.#end();
        this.#alive();
        let place = "", data = "", told = false;
        const close = lines("/v1/events", { after: this.#last }, (line) => {
            if (this.#close !== close)
                return;
            this.#alive();
            this.#wait = 500;
            if (!told) {
                told = true;
                this.dispatchEvent(new CustomEvent("state", { detail: null }));
            }
            if (line.startsWith("id:")) {
                place = line.slice(3).trim();
            } else if (line.startsWith("data:")) {
                data += line.slice(5).trim();
            } else if (line === "") { // without data it is no event, and where to go on
                this.#last = place || this.#last;
                if (data === "")
                    return;
                const event = JSON.parse(data);
                data = "";
                this.dispatchEvent(new CustomEvent("event", { detail: event }));
            }
        }, (failure) => {
            if (this.#close !== close)
                return;
            this.#close = null;
            this.dispatchEvent(new CustomEvent("state", { detail: failure }));
            clearTimeout(this.#timer);
            this.#timer = setTimeout(() => this.#open(), this.#wait);
            this.#wait = Math.min(this.#wait * 2, 8000);
        });
        this.#close = close;
    }
}
