// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestJavaScriptRunsCode(t *testing.T) {
	t.Parallel()
	n := startNative(t, languageJavaScript)
	n.runs([]codeCase{
		{name: "the value of the last expression", code: "let x = 1; x", text: "1"},
		{name: "the state is kept", code: "x += 1; x", text: "2"},
		{name: "a declaration again", code: "let x = 5; x", text: "5"},
		{name: "a constant", code: "const k = 1"},
		{name: "nothing has no value", code: "undefined"},
		{name: "output", code: "console.log(1); console.error(2)", out: "1\n", err: "2\n"},
		{name: "half a line", code: "process.stdout.write('a'); 0", text: "0", out: "a"},
		{name: "output of other programs", code: "console.log('a'); require('child_process').execSync('echo b; echo c >&2', {stdio: 'inherit'}); console.log('d')", out: "a\nb\nd\n", err: "c\n"},
		{name: "text", code: "'a' + 'b'", text: "'ab'"},
		{name: "an object", code: "({a: [1, {b: 2}]})", text: "{ a: [ 1, { b: 2 } ] }"},
		{name: "an exception", code: "null.x", fail: "TypeError: Cannot read properties of null"},
		{name: "another", code: "throw 'text'", fail: "Error: text"},
		{name: "no such name", code: "nothing_of_it", fail: "ReferenceError: nothing_of_it is not defined"},
		{name: "a syntax error", code: "a b", fail: "SyntaxError: Unexpected identifier"},
		{name: "await", code: "await Promise.resolve('late')", text: "'late'"},
		{name: "a promise", code: "Promise.resolve(7)", text: "7"},
		{name: "a promise that fails", code: "Promise.reject(new RangeError('r'))", fail: "RangeError: r"},
		{name: "an import", code: "\n    import { readFileSync as read, existsSync } from 'fs'\n    import path, * as all from 'node:path'\n    import 'node:os'\n    console.log(typeof read, typeof existsSync, typeof path.join, typeof all.join)", out: "function function function function\n"},
		{name: "an import in the code", code: "const o = await import('node:os'); typeof o.cpus", text: "'function'"},
		{name: "no import", code: "`import x from 'y' ${`import('z')` + 'import(1)'}` + /import('[/]')/.source // import('a')", text: `"import x from 'y' import('z')import(1)import('[/]')"`},
		{name: "division", code: "const a1 = 8, g = 2; a1 / g / 2", text: "2"},
		{name: "an export", code: "export const exported = 3; exported", text: "3"},
		{name: "a late exception", code: "setTimeout(() => { throw new Error('late') }, 1); await new Promise(r => setTimeout(r, 50))", err: "Uncaught Error: late\n    at Timeout._onTimeout (cell-23.js:1:26)\n"},
		{name: "exit", code: "process.exit(3)", fail: "SystemExit: 3"},
		{name: "a value that cannot be shown", code: "({[Symbol.for('nodejs.util.inspect.custom')]() { throw new Error('no') }})", fail: "Error: no"},
		{name: "an error that cannot be shown", code: "throw {get message() { throw 1 }, [Symbol.for('nodejs.util.inspect.custom')]() { throw new Error('no') }}", fail: "Error: (it cannot be shown)"},
		{name: "recursion", code: "(function f() { f() })()", fail: "RangeError: Maximum call stack size exceeded"},
		{name: "numbers", code: "-0", text: "-0"},
		{name: "big numbers", code: "10n ** 20n", text: "100000000000000000000n"},
		{name: "characters", code: "'ä€😀'", text: "'ä€😀'"},
		{name: "output is taken away", code: "process.stdout.end(); process.stdout.destroy(); console.log = null; undefined"},
		{name: "and is there", code: "process.stderr.write('e'); require('child_process').execSync('echo out', {stdio: 'inherit'}); 0", text: "0", out: "out\n", err: "e"},
		{name: "the kernel is nowhere", code: "typeof __boxd_kernel__ + Object.keys(globalThis).filter(k => k.includes('boxd'))", text: "'undefined'"},
	})
	if e := n.run("1"); e.count != 34 {
		t.Errorf("%d executions", e.count)
	}
	e := n.run("\nfunction f() {\n  throw new Error('x')\n}\nf()")
	if !strings.Contains(e.failed.Traceback, "at f (cell-35.js:3:9)") || strings.Contains(e.failed.Traceback, "node:") {
		t.Error(e.failed.Traceback)
	}
	if e := n.run("display({'text/html': '<b>'}, {raw: true}); display(1); ({[Symbol.for('Jupyter.display')]: () => ({'image/png': 'x', 'text/plain': 'p'})})"); len(e.results) != 3 || field(e.results[0], "text/html") != "<b>" || field(e.main, "image/png") != "x" {
		t.Errorf(`e.results = %s, want len(e.results) == 3 and field(e.results[0], "text/html") == "<b>" and field(e.main, "image/png") == "x"`,
			e.results)
	}
	if e := n.run("'x'.repeat(20_000_000)"); len(e.text()) < 4_000_000 || !strings.HasSuffix(e.text(), "more characters") {
		t.Errorf("%d characters", len(e.text()))
	}
}

func TestJavaScriptEnvironmentOfOneExecution(t *testing.T) {
	t.Parallel()
	n := startNative(t, languageJavaScript, "BOTH=outer")
	e := n.await(n.begin(&kernelRequest{Code: "[process.env.BOTH, process.env.NEW]", Env: map[string]string{"BOTH": "inner", "NEW": "1"}}))
	if e.text() != "[ 'inner', '1' ]" {
		t.Errorf(`e.text() = %v, e.failed = %v, want e.text() == "[ 'inner', '1' ]"`, e.text(), e.failed)
	}
	if e := n.run("[process.env.BOTH, process.env.NEW]"); e.text() != "[ 'outer', undefined ]" {
		t.Error(e.text())
	}
}

func TestJavaScriptModulesOfTheUser(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"m.mjs": "export default 5; export const named = 6;", "c.cjs": "module.exports = 7",
		"node_modules/p/package.json": `{"name":"p","exports":{"import":"./p.mjs"}}`, "node_modules/p/p.mjs": "export const x = 8",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n := startNativeIn(t, dir, languageJavaScript)
	e := n.run("import five, { named } from './m.mjs';\nimport { x } from 'p';\n[five, named, x, require('./c.cjs')]")
	if e.text() != "[ 5, 6, 8, 7 ]" {
		t.Errorf(`e.text() = %s, e.failed = %+v, want e.text() == "[ 5, 6, 8, 7 ]"`, e.text(), e.failed)
	}
}

func TestJavaScriptInterrupt(t *testing.T) {
	t.Parallel()
	n := startNative(t, languageJavaScript)
	for _, code := range []string{
		"console.log('on'); while (true);",
		"console.log('on'); await new Promise(() => {})",
		"console.log('on'); new Promise(r => setTimeout(r, 1e9))",
		"console.log('on'); require('child_process').execSync('sleep 1000'); while (true);",
		"console.log('on'); for (;;) console.log('x'.repeat(1000))",
		"console.log('on'); async function f() { for (;;) await null }; await f()",
	} {
		id := n.begin(&kernelRequest{Code: code})
		n.awaitOutput("on\n")
		n.write(&kernelRequest{Op: opInterrupt, ID: id})
		n.interrupt()
		if e := n.awaitInterrupted(id); e.failed == nil {
			t.Errorf("%q: e.failed = %+v, e.died = %v, want e.failed != nil", code, e.failed, e.died)
		}
		n.write(&kernelRequest{Op: opInterrupt, ID: id}) // nothing runs
		n.interrupt()
		for range 3 {
			if e := n.run("1 + 1"); e.text() != "2" {
				t.Fatalf(`after %q: e.text() = %q, e.failed = %+v, e.died = %v, e.err = %s, want e.text() == "2"`,
					code, e.text(), e.failed, e.died, e.err)
			}
		}
	}
}

func TestJavaScriptDies(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"process.reallyExit(3)", "process.kill(process.pid, 9)", "process.abort()", "for (const fd of [8, 9]) require('fs').closeSync(fd)"} {
		n := startNative(t, languageJavaScript)
		if e := n.run(code); !e.died {
			t.Errorf("%q: the kernel still runs", code)
		}
	}
}

func TestTypeScriptIsRunWhereItCan(t *testing.T) {
	t.Parallel()
	n := startNative(t, languageJavaScript)
	can := n.run("typeof require('module').stripTypeScriptTypes").text() == "'function'"
	e := n.await(n.begin(&kernelRequest{Lang: languageTypeScript, Code: "import { type Stats, statSync } from 'fs'\nenum E { A = 5 }\nconst m: number = E.A; interface I { a: string }\nconsole.log(m as number, typeof statSync)"}))
	switch {
	case can && e.out != "5 function\n":
		t.Errorf(`e.out = %q, e.failed = %+v, want can == false or e.out == "5 function\n"`, e.out, e.failed)
	case !can && (e.failed == nil || e.failed.Name != "TypeScriptUnavailable" || !strings.Contains(e.failed.Value, "esbuild")):
		t.Errorf(`e.out = %q, e.failed = %+v, want can == true or e.failed != nil and e.failed.Name == "TypeScriptUnavailable" and e.failed.Value containing "esbuild"`,
			e.out, e.failed)
	}
	if e := n.run("const after = 1; after"); e.text() != "1" {
		t.Errorf(`e.failed = %+v, want e.text() == "1"`, e.failed)
	}
}

func TestJavaScriptWritesMuch(t *testing.T) {
	t.Parallel()
	n := startNative(t, languageJavaScript)
	e := n.run("const cp = require('child_process')\nconst ps = [1, 2, 3].map(() => new Promise(r => cp.spawn('head', ['-c', '5000000', '/dev/zero'], {stdio: 'inherit'}).on('close', r)))\n" +
		"for (let i = 0; i < 100; i++) { display('x'.repeat(20_000)); await null }\nawait Promise.all(ps); 'end'")
	if len(e.out) != 15_000_000 || strings.Trim(e.out, "\x00") != "" || len(e.results) != 101 || e.text() != "'end'" {
		t.Errorf("%d bytes, %d results, %s %+v", len(e.out), len(e.results), e.err, e.failed)
	}
}
