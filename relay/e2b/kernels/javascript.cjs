// SPDX-License-Identifier: Apache-2.0

// The kernel of a code context of JavaScript and TypeScript. boxd runs it in the box, as any program of it: node -e PROGRAM NONCE,
// with requests on descriptor 7 and copies of standard output and error on 8 and 9. What it reads and writes is as python.py has it;
// the request {"op": "interrupt", "id"} is its own, and means what runs if the id is "*".
//
// Code runs in the main thread, where the inspector evaluates it: its REPL mode has top-level await and declarations that stay. A
// worker thread reads the requests, and ends code that never lets go.

(() => { // the code has a global scope of its own
  "use strict";

  const fs = require("node:fs");
  const util = require("node:util");
  const inspector = require("node:inspector");
  const nodeModule = require("node:module");
  const path = require("node:path");
  const { pathToFileURL } = require("node:url");
  const { Writable } = require("node:stream");
  const { Worker } = require("node:worker_threads");

  const REQUESTS = 7, OUT = 8, ERR = 9;
  const nonce = process.argv[1];

  // put writes all of it. Another program that has the pipe may have made it one that does not wait.
  function put(fd, data) {
    let at = 0;
    while (at < data.length) {
      try {
        at += fs.writeSync(fd, data, at, data.length - at);
      } catch (problem) {
        if (problem.code !== "EAGAIN" && problem.code !== "EINTR") throw problem;
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 2);
      }
    }
  }

  const MOST = 12 << 20; // bytes of one event
  const LONG = 4 << 20; // characters of a text

  // The code's output, which has to be on its way before the kernel says that the code has ended.
  for (const [name, fd] of [["stdout", 1], ["stderr", 2]]) {
    const stream = new Writable();
    // Not as a Writable does it: that waits for ever for a write in whose middle the code was ended.
    stream.write = (chunk, encoding, done) => {
      if (typeof encoding === "function") [encoding, done] = [undefined, encoding];
      put(fd, typeof chunk === "string" ? Buffer.from(chunk, encoding) : chunk);
      if (done) process.nextTick(done);
      return true;
    };
    stream.end = (chunk, ...more) => {
      if (chunk !== undefined && typeof chunk !== "function") stream.write(chunk, ...more);
      return stream;
    };
    stream.fd = fd;
    stream._type = "pipe";
    stream.destroySoon = stream.destroy = () => stream;
    Object.defineProperty(process, name, { configurable: true, enumerable: true, get: () => stream });
  }

  // frame writes a piece of an event, which a pipe never mixes with what others write. "!" is a whole event, "^" the first piece of
  // several, "." the last.
  const PIECE = 4096 - nonce.length - 3;
  function frame(fd, kind, text) {
    try {
      put(fd, Buffer.from(`\x1e${nonce}${kind}${text}\n`, "latin1"));
    } catch {
      reallyExit(1); // nobody would hear of anything any more
    }
  }

  // send tells boxd of an event.
  function send(event) {
    let text = ascii(event);
    if (text.length > MOST && event.e === "result") {
      const data = { "text/plain": `(a result of ${text.length} bytes, which is too long)` };
      for (const [mime, value] of Object.entries(event.data)) if (ascii(value).length < MOST / 8) data[mime] = value;
      text = ascii({ ...event, data });
    }
    if (text.length <= PIECE) return frame(OUT, "!", text);
    for (let at = 0; at < text.length; at += PIECE) {
      frame(OUT, at === 0 ? "^" : at + PIECE < text.length ? "+" : ".", text.slice(at, at + PIECE));
    }
  }

  function both(event) {
    for (const fd of [OUT, ERR]) frame(fd, "!", ascii(event));
  }

  const ascii = (value) => JSON.stringify(value).replace(/[\u007f-\uffff]/g, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));

  const shortened = (text) => (text.length <= LONG ? text : `${text.slice(0, LONG)}… (${text.length} characters)`);

  // bundle is the MIME types of a value and what it is in each.
  function bundle(value) {
    const make = value !== null && typeof value === "object" && value[Symbol.for("Jupyter.display")];
    if (typeof make === "function") {
      const data = make.call(value);
      if (data !== null && typeof data === "object") return data;
    }
    return { "text/plain": shortened(util.inspect(value, { colors: false, maxStringLength: LONG - 100 })) };
  }

  function display(value, options) {
    send({ e: "result", main: false, data: options && options.raw ? value : bundle(value) });
  }

  const immediate = setImmediate;
  const reallyExit = process.reallyExit.bind(process);
  const onInterrupt = () => {};

  class Exit extends Error {}
  class Interrupt extends Error {}

  function describe(error) {
    let name = "Error", value = "", traceback = "";
    try {
      if (error instanceof Error || util.types.isNativeError(error)) {
        name = error instanceof Exit ? "SystemExit" : String(error.name);
        value = String(error.message);
        traceback = String(error.stack || `${name}: ${value}`);
      } else {
        value = typeof error === "string" ? error : util.inspect(error);
        traceback = `Uncaught ${value}`;
      }
    } catch {
      value = "(it cannot be shown)";
    }
    // What has called the code is the kernel.
    const lines = traceback.split("\n");
    const last = lines.findLastIndex((line) => /^\s+at .*\bcell-\d+\.js:/.test(line));
    const kept = last < 0 ? lines.filter((line) => !/^\s+at .*(\[eval\]|node:)/.test(line)) : lines.slice(0, last + 1);
    return { e: "error", name, value: shortened(value), traceback: shortened(kept.join("\n")) };
  }

  // strip takes the types out of TypeScript by what there is that can.
  function strip(code) {
    if (nodeModule.stripTypeScriptTypes) {
      const emit = process.emitWarning;
      process.emitWarning = () => {}; // that it is experimental
      try {
        return nodeModule.stripTypeScriptTypes(code, { mode: "transform" });
      } finally {
        process.emitWarning = emit;
      }
    }
    for (const [name, transform] of [
      ["esbuild", (tool) => tool.transformSync(code, { loader: "ts", format: "esm", target: "esnext", tsconfigRaw: '{"compilerOptions":{"verbatimModuleSyntax":true}}' }).code],
      ["typescript", (tool) => tool.transpileModule(code, { compilerOptions: { target: "esnext", module: "esnext", verbatimModuleSyntax: true } }).outputText],
      ["sucrase", (tool) => tool.transform(code, { transforms: ["typescript"], disableESTransforms: true }).code],
    ]) {
      const tool = installed(name);
      if (tool) return transform(tool);
    }
    const error = new Error(`TypeScript needs Node.js 22.13 or later (this is ${process.version}), or one of the packages esbuild, typescript and sucrase`);
    error.name = "TypeScriptUnavailable";
    error.stack = "";
    throw error;
  }

  // installed is a package of the code's or of all programs, undefined if there is none.
  function installed(name) {
    const global = path.join(path.dirname(path.dirname(process.execPath)), "lib", "node_modules");
    for (const from of [process.cwd(), global, "/usr/lib/node_modules", "/usr/local/lib/node_modules", "/usr/share/nodejs"]) {
      for (const where of [from, path.join(from, "tsx")]) { // which brings esbuild
        try {
          return nodeModule.createRequire(path.join(where, "x.js"))(path.isAbsolute(from) && from !== process.cwd() && where === from ? path.join(from, name) : name);
        } catch {
          // perhaps elsewhere
        }
      }
    }
  }

  function importModule(specifier, options) {
    const name = String(specifier);
    return import(/^\.{0,2}\//.test(name) ? pathToFileURL(path.resolve(name)).href : name, options);
  }

  process.exit = (code) => {
    const error = new Exit(String(code === undefined ? process.exitCode || 0 : code));
    throw error;
  };
  process.on("SIGINT", onInterrupt);
  for (const kind of ["uncaughtException", "unhandledRejection"]) {
    process.on(kind, (error) => {
      try {
        process.stderr.write(`Uncaught ${describe(error).traceback}\n`);
      } catch {
        // the code has taken that away
      }
    });
  }
  const define = (name, value) => Object.defineProperty(globalThis, name, { configurable: true, writable: true, enumerable: false, value });
  define("display", display);
  define("__boxd_import__", importModule);
  define("require", nodeModule.createRequire(path.join(process.cwd(), "cell.js")));
  define("module", { exports: {} });
  define("exports", globalThis.module.exports);
  define("__dirname", process.cwd());
  define("__filename", path.join(process.cwd(), "cell.js"));
  process.argv.length = 1;

  // rewrite makes imports what a script can have, and leaves strings, comments, templates and regular expressions alone.
  function rewrite(code) {
    let out = "", depth = 0, at = 0, value = false, start = true, dot = false;
    const templates = []; // depths at which a template goes on
    const copy = (to) => {
      out += code.slice(at, to);
      at = to;
    };
    const template = () => {
      // at is after a backtick or the } of a substitution
      let i = at;
      for (; i < code.length; i++) {
        if (code[i] === "\\") i++;
        else if (code[i] === "`") {
          copy(i + 1);
          return;
        } else if (code[i] === "$" && code[i + 1] === "{") {
          copy(i + 2);
          templates.push(depth++);
          value = false;
          return;
        }
      }
      copy(code.length);
    };
    while (at < code.length) {
      const c = code[at], two = code.slice(at, at + 2);
      if (/\s/.test(c)) {
        if (c === "\n" && depth === 0) start = true;
        copy(at + 1);
        continue;
      }
      if (two === "//") {
        const end = code.indexOf("\n", at);
        copy(end < 0 ? code.length : end);
        continue;
      }
      if (two === "/*") {
        const end = code.indexOf("*/", at + 2);
        copy(end < 0 ? code.length : end + 2);
        continue;
      }
      const word = /^[\p{ID_Start}$_][\p{ID_Continue}$\u200c\u200d]*/u.exec(code.slice(at, at + 256));
      if (word) {
        const name = word[0];
        if (name === "import" && !dot) {
          const rest = code.slice(at), call = /^import\s*\(/.exec(rest);
          if (call) {
            out += "__boxd_import__";
            at += name.length;
            value = start = false;
            continue;
          }
          const found = start && depth === 0 && declaration(rest);
          if (found) {
            out += found.text + "\n".repeat(found.source.split("\n").length - 1);
            at += found.source.length;
            value = false;
            continue;
          }
        }
        if (name === "export" && start && depth === 0 && !dot) {
          const found = /^export\s+(default\s+)?(?=(const|let|var|function|class|async)\b)/.exec(code.slice(at));
          if (found) {
            at += found[0].length;
            continue;
          }
        }
        copy(at + name.length);
        value = dot || !/^(return|typeof|case|in|of|delete|void|throw|new|instanceof|do|else|await|yield)$/.test(name);
        start = dot = false;
        continue;
      }
      if (c === '"' || c === "'") {
        let i = at + 1;
        while (i < code.length && code[i] !== c && code[i] !== "\n") i += code[i] === "\\" ? 2 : 1;
        copy(Math.min(i + 1, code.length));
        value = true;
        start = dot = false;
        continue;
      }
      if (c === "`") {
        copy(at + 1);
        value = true;
        start = dot = false;
        template();
        continue;
      }
      if (c === "/" && !value) {
        let i = at + 1, set = false;
        for (; i < code.length && code[i] !== "\n" && (set || code[i] !== "/"); i++) {
          if (code[i] === "\\") i++;
          else if (code[i] === "[") set = true;
          else if (code[i] === "]") set = false;
        }
        copy(Math.min(i + 1, code.length));
        value = true;
        start = dot = false;
        continue;
      }
      if (c === "}" && templates.length && templates[templates.length - 1] === depth - 1) {
        depth = templates.pop();
        copy(at + 1);
        value = true;
        template();
        continue;
      }
      if ("({[".includes(c)) depth++;
      if (")}]".includes(c)) depth = Math.max(0, depth - 1);
      value = ")}]".includes(c) || /[0-9]/.test(c);
      dot = c === ".";
      start = depth === 0 && (c === ";" || c === "}");
      copy(at + 1);
    }
    return out;
  }

  function declaration(rest) {
    const bare = /^import\s*(["'])([^"'\n]+)\1[ \t]*;?/.exec(rest);
    if (bare) return { source: bare[0], text: `await __boxd_import__(${JSON.stringify(bare[2])});` };
    const found = /^import\s+(?!type\s+[\w{*])([\w$\s,*{}]+?)\s*from\s*(["'])([^"'\n]+)\2(?:\s+(?:with|assert)\s*(\{[^}]*\}))?[ \t]*;?/.exec(rest);
    if (!found) return undefined;
    const [source, clause, , from, attributes] = found;
    const load = `await __boxd_import__(${JSON.stringify(from)}${attributes ? `, { with: ${attributes} }` : ""})`;
    const names = [];
    let text = "";
    const braces = /\{([^}]*)\}/.exec(clause);
    const space = /\*\s*as\s+([\w$]+)/.exec(clause);
    const first = /^\s*([\w$]+)\s*(?:,|$)/.exec(clause.replace(/\{[^}]*\}/, "").trim());
    if (space) text += `var ${space[1]} = ${load};`;
    if (first) names.push(`default: ${first[1]}`);
    for (const one of braces ? braces[1].split(",") : []) {
      const [, name, as] = /^\s*(?:type\s+)?([\w$]+)(?:\s+as\s+([\w$]+))?\s*$/.exec(one) || [];
      if (name) names.push(as ? `${name}: ${as}` : name);
    }
    if (names.length || !space) text += `var { ${names.join(", ")} } = ${load};`;
    return { source, text };
  }

  const session = new inspector.Session();
  session.connect();
  const post = (method, params) =>
    new Promise((resolve, reject) => session.post(method, params, (error, answer) => (error ? reject(error) : resolve(answer))));

  // held is how values get from the inspector to here: it has the object by its id, and can call functions of it.
  const held = {};
  let heldID;
  define("__boxd_kernel__", held);
  session.post("Runtime.evaluate", { expression: "__boxd_kernel__" }, (_, answer) => (heldID = answer.result.objectId));
  delete globalThis.__boxd_kernel__;

  // valueOf returns a value in an object: one that is a promise would be awaited.
  async function valueOf(remote) {
    if (remote.unserializableValue) return { value: numbers(remote.unserializableValue) };
    if (!remote.objectId) return { value: remote.value };
    await post("Runtime.callFunctionOn", {
      objectId: heldID,
      functionDeclaration: "function (value) { this.value = value; }",
      arguments: [{ objectId: remote.objectId }],
    });
    const { value } = held;
    held.value = undefined;
    return { value };
  }

  const numbers = (text) => (text.endsWith("n") ? BigInt(text.slice(0, -1)) : Number(text));

  // evaluate returns the value of code, in an object as well.
  async function evaluate(request) {
    const code = request.lang === "typescript" ? strip(request.code) : request.code;
    const answer = await post("Runtime.evaluate", {
      expression: `${rewrite(code)}\n//# sourceURL=cell-${count}.js`,
      replMode: true,
      awaitPromise: true,
      objectGroup: "cell",
    });
    if (!answer.exceptionDetails) {
      const { value } = await valueOf(answer.result);
      return { value: util.types.isPromise(value) ? await value : value };
    }
    if (!answer.exceptionDetails.exception) throw new Interrupt();
    throw (await valueOf(answer.exceptionDetails.exception)).value;
  }

  let count = 0;
  let running; // the execution that has not ended

  async function run(request) {
    count++;
    const now = { id: request.id, before: {} };
    running = now;
    process.removeListener("SIGINT", onInterrupt);
    process.on("SIGINT", onInterrupt);
    both({ e: "begin", id: now.id, count });
    for (const [name, value] of Object.entries(request.env || {})) {
      now.before[name] = process.env[name];
      process.env[name] = value;
    }
    const interrupted = new Promise((_, reject) => (now.interrupt = () => reject(new Interrupt())));
    try {
      const { value } = await Promise.race([evaluate(request), interrupted]);
      if (value !== undefined) send({ e: "result", main: true, data: bundle(value) });
      end(now);
    } catch (error) {
      end(now, error);
    }
  }

  // end tells of the end of an execution, once.
  function end(now, ...error) {
    if (now !== running) return;
    running = undefined;
    if (error.length) {
      const interrupted = error[0] instanceof Interrupt || (error[0] && error[0].code === "ERR_INSPECTOR_COMMAND");
      send(interrupted ? { e: "error", name: "KeyboardInterrupt", value: "", traceback: "KeyboardInterrupt" } : describe(error[0]));
    }
    for (const [name, value] of Object.entries(now.before)) {
      if (value === undefined) delete process.env[name];
      else process.env[name] = value;
    }
    session.post("Runtime.releaseObjectGroup", { objectGroup: "cell" });
    both({ e: "end", id: now.id });
    worker.postMessage(now.id);
  }

  // What the worker runs. It has the main thread do one request after another.
  function reader() {
    "use strict";
    const net = require("node:net");
    const inspector = require("node:inspector");
    const { parentPort, workerData } = require("node:worker_threads");
    const session = new inspector.Session();
    session.connectToMainThread();
    const queue = [];
    let doing; // the id of the request that the main thread has

    function next() {
      if (doing !== undefined || !queue.length) return;
      const request = queue.shift();
      doing = request.id;
      parentPort.postMessage(request);
    }

    parentPort.on("message", () => {
      doing = undefined;
      next();
    });

    // interrupt has the main thread end what it does, if it listens; else what it does is terminated.
    async function interrupt(id) {
      for (let again = false; id !== undefined && doing === id; again = true) {
        parentPort.postMessage({ op: "interrupt", id });
        await new Promise((resolve) => setTimeout(resolve, again ? 500 : 200));
        if (doing === id) session.post("Runtime.terminateExecution", () => {});
      }
    }

    function take(line) {
      let request;
      try {
        request = JSON.parse(line);
      } catch {
        return; // the beginning of one whose sender has gone
      }
      if (request === null || typeof request.id !== "string") return;
      if (request.op === "interrupt") void interrupt(request.id === "*" ? doing : request.id);
      else queue.push(request);
      next();
    }

    let rest = [];
    const requests = new net.Socket({ fd: workerData, readable: true, writable: false });
    requests.on("data", (data) => {
      for (let at; (at = data.indexOf(10)) >= 0; data = data.subarray(at + 1)) {
        rest.push(data.subarray(0, at));
        const line = Buffer.concat(rest).toString();
        rest = [];
        if (line) take(line);
      }
      rest.push(data);
    });
    requests.on("close", () => process.exit());
  }

  const worker = new Worker(`(${reader})()`, { eval: true, workerData: REQUESTS });
  worker.on("message", (request) => {
    if (request.op === "run") void run(request);
    if (request.op === "interrupt" && running && running.id === request.id) {
      running.interrupt();
      immediate(() => running && running.id === request.id && end(running, new Interrupt())); // it may have been terminated where nothing waits for it
    }
    if (request.op === "sync") {
      both({ e: "synced", id: request.id });
      worker.postMessage(request.id);
    }
  });
  worker.on("error", (error) => {
    put(2, Buffer.from(`the kernel has failed: ${error && error.stack}\n`));
    reallyExit(1);
  });
  worker.on("exit", () => reallyExit(0));
})();
