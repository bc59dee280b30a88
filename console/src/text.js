// SPDX-License-Identifier: Apache-2.0
//
// Texts: translation, and how sizes, times and shares are written.

const cockpit = window.cockpit;

/** _ is a text in the language of the page; po/ has the translations. */
export const _ = cockpit.gettext;

/** plural is one of two texts, by a number. */
export const plural = cockpit.ngettext;

/** fill puts values in the places $0, $1, … of a text. */
export function fill(text, ...values) {
    return cockpit.format(text, ...values);
}

const language = () => document.documentElement.lang || "en";

function number(n, digits) {
    return new Intl.NumberFormat(language(), { maximumFractionDigits: digits }).format(n);
}

/** count is a number of things. */
export const count = (n) => number(n, 0);

/** decimal is a number with at most two digits after the point. */
export const decimal = (n) => number(n, 2);

const units = ["B", "KiB", "MiB", "GiB", "TiB"];

/** size is a number of bytes. */
export function size(bytes) {
    let n = bytes, unit = 0;
    while (n >= 1024 && unit < units.length - 1) {
        n /= 1024;
        unit++;
    }
    return number(n, n < 10 && unit > 0 ? 1 : 0) + " " + units[unit];
}

/** percent is a share, 1 being all. */
export function percent(share) {
    return new Intl.NumberFormat(language(), { style: "percent", maximumFractionDigits: 0 }).format(share);
}

/** span is a length of time in the two largest units of it. */
export function span(seconds) {
    const s = Math.max(0, Math.round(seconds));
    const parts = [[Math.floor(s / 86400), "d"], [Math.floor(s / 3600) % 24, "h"], [Math.floor(s / 60) % 60, "m"], [s % 60, "s"]];
    const first = parts.findIndex(([n]) => n > 0);
    if (first < 0)
        return "0s";
    return parts.slice(first, first + 2).filter(([n]) => n > 0).map(([n, unit]) => n + unit).join(" ");
}

/** secondsOf reads a length of time as boxd writes it, such as 1h30m or 250ms. */
export function secondsOf(text) {
    let all = 0;
    for (const [, n, unit] of String(text ?? "").matchAll(/([\d.]+)(ms|h|m|s|d)/g))
        all += Number(n) * { ms: 0.001, s: 1, m: 60, h: 3600, d: 86400 }[unit];
    return all;
}

/** when is a point in time. */
export function when(time) {
    const t = new Date(time);
    const sameDay = t.toDateString() === new Date().toDateString();
    return new Intl.DateTimeFormat(language(), sameDay ? { timeStyle: "medium" } : { dateStyle: "medium", timeStyle: "short" }).format(t);
}

/** precise is a point in time with milliseconds, for logs. */
export function precise(time) {
    const t = new Date(time);
    return t.toLocaleTimeString(language(), { hour12: false }) + "." + String(t.getMilliseconds()).padStart(3, "0");
}

// What programs write may have sequences for terminals. A log shows text, and says where it has left something out.
// eslint-disable-next-line no-control-regex
const sequences = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[ -/]*[0-~])/g;

/** plain is what a program has written as text: without sequences for terminals, and with signs for other control characters. */
export function plain(text) {
    return text
        .replace(sequences, "")
        .replace(/\r\n/g, "\n")
        .replace(/[^\n]*\r(?!\n)/g, "")
        // eslint-disable-next-line no-control-regex
        .replace(/[\x00-\x08\x0b-\x1f\x7f-\x9f]/g, (c) => c.charCodeAt(0) < 0x20 ? String.fromCharCode(0x2400 + c.charCodeAt(0)) : "\u2421");
}

/** hasSequences reports whether plain would leave something out. */
export function hasSequences(text) {
    sequences.lastIndex = 0;
    return sequences.test(text);
}

/** bytesOf reads base64. */
export function bytesOf(base64) {
    return Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
}

/** base64Of writes bytes, or text as UTF-8. */
export function base64Of(data) {
    const bytes = typeof data === "string" ? new TextEncoder().encode(data) : data;
    let text = "";
    for (let i = 0; i < bytes.length; i += 0x8000)
        text += String.fromCharCode(...bytes.subarray(i, i + 0x8000));
    return btoa(text);
}
