// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPythonRunsCode(t *testing.T) {
	t.Parallel()
	n := startNative(t, languagePython)
	n.runs([]codeCase{
		{name: "the value of the last expression", code: "x = 1; x", text: "1"},
		{name: "the state is kept", code: "x += 1; x", text: "2"},
		{name: "nothing has no value", code: "None"},
		{name: "a semicolon hides a value", code: "x;"},
		{name: "output", code: "import sys\nprint(1)\nprint(2, file=sys.stderr)", out: "1\n", err: "2\n"},
		{name: "half a line", code: "print('a', end='')", out: "a"},
		{name: "output of other programs", code: "import os\nprint('a')\nos.system('echo b; echo c >&2')\nprint('d');", out: "a\nb\nd\n", err: "c\n"},
		{name: "bytes", code: `sys.stdout.buffer.write(b'\xff\x00\x1e');`, out: "\xff\x00\x1e"},
		{name: "indented code", code: "\n    y = 5\n    y", text: "5"},
		{name: "an exception", code: "1/0", fail: "ZeroDivisionError: division by zero"},
		{name: "no such name", code: "nothing_of_it", fail: "NameError: name 'nothing_of_it' is not defined"},
		{name: "a syntax error", code: "a b", fail: "SyntaxError: invalid syntax (<cell 12>, line 1)"},
		{name: "exit", code: "import sys\nsys.exit(3)", fail: "SystemExit: 3"},
		{name: "await", code: "import asyncio\nawait asyncio.sleep(0, 'late')", text: "'late'"},
		{name: "an event loop of its own", code: "async def f(): return 7\nasyncio.run(f())", text: "7"},
		{name: "input", code: "input()", fail: "EOFError: EOF when reading a line"},
		{name: "a value that cannot be shown", code: "class A:\n  def __repr__(self): raise ValueError('no')\nA()", fail: "ValueError: no"},
		{name: "an error that cannot be shown", code: "class E(Exception):\n  def __str__(self): raise ValueError('no')\nraise E()", fail: "E: (it cannot be shown)"},
		{name: "recursion", code: "def f(): f()\nf()", fail: "RecursionError: maximum recursion depth exceeded"},
		{name: "the last value", code: "6\n", text: "6"},
		{name: "the last value again", code: "_ + 1", text: "7"},
		{name: "definitions of __main__", code: "import pickle\nclass P: pass\npickle.loads(pickle.dumps(P)) is P", text: "True"},
		{name: "no output of its own is left", code: "sys.stdout.close()"},
		{name: "output is there again", code: "print('again')", out: "again\n"},
		{name: "descriptors are closed", code: "os.close(1); os.close(2); os.close(0)"},
		{name: "and are there again", code: "print('again', file=sys.stderr); os.system('echo out');", out: "out\n", err: "again\n"},
		{name: "another output", code: "sys.stdout = None"},
		{name: "is put back", code: "print('again')", out: "again\n"},
		{name: "annotations", code: "from __future__ import annotations"},
		{name: "stay", code: "def f(a: nothing): pass\nf.__annotations__['a']", text: "'nothing'"},
		{name: "a class of code", code: "import inspect\ndef g():\n  return 1\ninspect.getsource(g)", text: `'def g():\n  return 1\n'`},
		{name: "a signal handler of its own", code: "import signal\nsignal.signal(signal.SIGINT, signal.SIG_DFL);"},
		{name: "threads", code: "import threading\nt = threading.Thread(target=lambda: print('t'))\nt.start(); t.join()", out: "t\n"},
		{name: "a fork that comes back", code: "p = os.fork()\nif p: os.waitpid(p, 0)\nprint('once' if p else 'child')\np > 0", out: "child\nonce\n", text: "True"},
		{name: "processes", code: "import multiprocessing as m\ndef sq(x): return x * x\nwith m.get_context('fork').Pool(2) as pool: r = pool.map(sq, [1, 2])\nr", text: "[1, 4]"},
	})
}

func TestPythonCountsExecutions(t *testing.T) {
	t.Parallel()
	n := startNative(t, languagePython)
	for want := int64(1); want < 4; want++ {
		if e := n.run("1"); e.count != want {
			t.Errorf("%d, not %d", e.count, want)
		}
	}
}

// A traceback is about the user's code: it names the line, and no line of the kernel.
func TestPythonTracebacks(t *testing.T) {
	t.Parallel()
	n := startNative(t, languagePython)
	e := n.run("def f():\n    return 1 / 0\n\nf()")
	for _, want := range []string{"Traceback (most recent call last):", `File "<cell 1>", line 2, in f`, "return 1 / 0", "ZeroDivisionError: division by zero"} {
		if !strings.Contains(e.failed.Traceback, want) {
			t.Errorf("no %q in\n%s", want, e.failed.Traceback)
		}
	}
	for _, code := range []string{"f()", "await f()", "async def g(): f()\nawait g()", "%time f()"} {
		if e := n.run(code); strings.Contains(e.failed.Traceback, "evaluate") || strings.Contains(e.failed.Traceback, "\x1b") || strings.Contains(e.failed.Traceback, "asyncio") {
			t.Errorf("%s: frames of the kernel:\n%s", code, e.failed.Traceback)
		}
	}
}

func TestPythonShowsValues(t *testing.T) {
	t.Parallel()
	n := startNative(t, languagePython)
	n.run(`
class Rich:
    def _repr_html_(self): return "<b>"
    def _repr_png_(self): return b"\x89PNG"
    def _repr_json_(self): return {"a": [1, float("nan")]}
    def _repr_markdown_(self): raise NotImplementedError
    def _repr_latex_(self): raise ValueError("broken")
class Bundle:
    def _repr_mimebundle_(self, include=None, exclude=None): return {"text/plain": "p", "x/y": 1}, {}
`)
	e := n.run("display(1, 'b')\ndisplay({'text/latex': 'x'}, raw=True)\ndisplay(Bundle())\nRich()")
	var got []string
	for _, r := range e.results {
		text, _ := json.Marshal(r)
		got = append(got, string(text))
	}
	want := []string{
		`{"text/plain":"1"}`, `{"text/plain":"'b'"}`, `{"text/latex":"x"}`, `{"text/plain":"p","x/y":1}`,
		`{"application/json":{"a":[1,null]},"image/png":"iVBORw==","text/html":"<b>","text/plain":"<__main__.Rich object`,
	}
	if len(got) != len(want) || !strings.Contains(e.err, "ValueError: broken") {
		t.Fatalf(`got %q, e.err = %q, want len(got) == len(want) and e.err containing "ValueError: broken"`, got, e.err)
	}
	for i := range want {
		if !strings.HasPrefix(strings.NewReplacer(`\u003c`, "<", `\u003e`, ">").Replace(got[i]), want[i]) {
			t.Errorf("%s, not %s", got[i], want[i])
		}
	}
	if e := n.run("from IPython.display import display, HTML, Markdown\nfrom IPython.core.display import SVG\nHTML('<i>')"); field(e.main, "text/html") != "<i>" {
		t.Errorf(`e.main = %v, e.failed = %+v, want field(e.main, "text/html") == "<i>"`, e.main, e.failed)
	}
	if e := n.run("'x' * (5 << 20)"); len(e.text()) > 5<<20 || !strings.HasSuffix(e.text(), "characters)") {
		t.Errorf("%d characters of text", len(e.text()))
	}
	if e := n.run("display({'text/html': 'x' * (13 << 20), 'text/plain': 'short'}, raw=True)"); field(e.results[0], "text/plain") != "short" || e.results[0]["text/html"] != nil {
		t.Error("a result that is too long for an event was not dropped")
	}
}

// Libraries that a box may have: minimal stand-ins with what the kernel calls in them.
func TestPythonShowsFramesAndFigures(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"pandas.py":              "class DataFrame(dict):\n  def _repr_html_(self): return '<table>'\n",
		"matplotlib/__init__.py": "", "matplotlib/backends/__init__.py": "", "matplotlib/backends/backend_agg.py": "",
		"matplotlib/figure.py": "class Figure:\n  lines = texts = images = patches = ()\n  axes = [1]\n  def get_axes(self): return [1]\n" +
			"  def get_facecolor(self): return 1\n  get_edgecolor = get_facecolor\n  @property\n  def canvas(self): return self\n  def print_png(self): pass\n" +
			"  def print_figure(self, out, **_):\n    import PIL.Image\n    PIL.Image.Image().save(out)\n    out.write(b'png')\n",
		"PIL/__init__.py":    "",
		"PIL/Image.py":       "class Image:\n  def save(self, out): pass\n  def show(self): raise ValueError\n  def _repr_png_(self):\n    self.save(None)\n    return b'image'\n",
		"matplotlib/axes.py": "class Axes:\n  def bxp(self, stats): pass\n",
		"matplotlib/pyplot.py": "import matplotlib.axes\nfrom matplotlib.figure import Figure\nfigs = {}\ndef plot():\n  figs[len(figs) + 1] = Figure()\ndef show(): raise ValueError\n" +
			"def get_fignums(): return list(figs)\ndef figure(n): return figs[n]\ndef close(f):\n  for n in list(figs):\n    if f == 'all' or figs[n] is f: del figs[n]\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n := startNative(t, languagePython, "PYTHONPATH="+dir)
	e := n.run("import pandas as pd\npd.DataFrame({'a': [1, float('nan')]})")
	if string(e.main["e2b/data"]) != `{"a": [1, null]}` || field(e.main, "text/html") != "<table>" {
		t.Errorf("e.main = %s, e.failed = %+v, want e.main[\"e2b/data\"] == `{\"a\": [1, null]}` and field(e.main, \"text/html\") == \"<table>\"",
			e.main, e.failed)
	}
	e = n.run("import matplotlib.pyplot as plt\nplt.plot()\nplt.show()\nplt.plot()\n5")
	if len(e.results) != 3 || field(e.results[0], "image/png") != "cG5n" || e.text() != "5" || field(e.results[2], "image/png") != "cG5n" {
		t.Errorf(`e.results = %s, e.failed = %+v, e.err = %s, want len(e.results) == 3 and field(e.results[0], "image/png") == "cG5n" and e.text() == "5" and field(e.results[2], "image/png") == "cG5n"`,
			e.results, e.failed, e.err)
	}
	if e = n.run("plt.plot()\nplt.figure(1)"); len(e.results) != 1 || e.main == nil {
		t.Errorf("a figure that is the value: e.results = %s, e.failed = %+v, want len(e.results) == 1 and e.main != nil",
			e.results, e.failed)
	}
	if e = n.run("plt.plot()\n1/0"); len(e.results) != 0 {
		t.Errorf("e.results = %s, want len(e.results) == 0", e.results)
	}
	for code, want := range map[string]int{"import PIL.Image\nim = PIL.Image.Image()\nim.save('x')": 1, "im.show()": 1, "im": 1, "im.show(); im": 2} {
		if e = n.run("import PIL.Image\nim = PIL.Image.Image()\n" + code); len(e.results) != want || field(e.results[0], "image/png") != "aW1hZ2U=" {
			t.Errorf(`%s: e.results = %s, e.failed = %+v, want len(e.results) == %v and field(e.results[0], "image/png") == "aW1hZ2U="`,
				code, e.results, e.failed, want)
		}
	}
	if e = n.run("1;"); len(e.results) != 0 {
		t.Errorf("a figure of an execution that has failed: e.results = %s, want len(e.results) == 0", e.results)
	}
}

func TestPythonMagics(t *testing.T) {
	t.Parallel()
	n := startNative(t, languagePython)
	for _, c := range []struct{ code, out, text string }{
		{"a = 5\n!echo {a} $a $HOME_OF_NOBODY x", "5 5 x\n", ""},
		{"for i in range(2):\n    !echo {i}", "0\n1\n", ""},
		{"files = !printf 'a\\nb\\n'\nfiles", "", "['a', 'b']"},
		{"!echo a \\\n  b", "a b\n", ""},
		{"s = '''\n!echo no\n%nothing\n'''\n!echo yes", "yes\n", ""},
		{"!exit 3\n_exit_code", "", "3"},
		{"%cd /tmp\n%pwd", "/tmp\n", "'/tmp'"},
		{"%env A_OF_MINE=1\n!echo $A_OF_MINE", "env: A_OF_MINE=1\n1\n", ""},
		{"%%bash\necho in bash\nx=$((1+1)); echo $x", "in bash\n2\n", ""},
		{"%%writefile f.txt\nhello\n", "Writing f.txt\n", ""},
		{"%cat f.txt", "hello\n", ""},
		{"%matplotlib inline\n7 % 4", "", "3"},
		{"7 \\\n % 4", "", "3"},
	} {
		e := n.run(c.code)
		if c.code[:3] == "%%w" {
			e.out = strings.Replace(e.out, "Overwriting", "Writing", 1)
		}
		if e.out != c.out || e.text() != c.text || e.failed != nil {
			t.Errorf("%s: out %q, text %q, error %+v, %s", c.code, e.out, e.text(), e.failed, e.err)
		}
	}
	if e := n.run("%nothing"); e.failed == nil || e.failed.Name != "NameError" || !strings.Contains(e.failed.Value, "timeit") {
		t.Errorf(`e.failed = %+v, want e.failed != nil and e.failed.Name == "NameError" and e.failed.Value containing "timeit"`,
			e.failed)
	}
	if e := n.run("%timeit -n 1 pass"); e.failed != nil || !strings.Contains(e.out, "per loop") {
		t.Errorf(`e.failed = %+v, e.out = %s, want e.failed == nil and e.out containing "per loop"`, e.failed, e.out)
	}
}

func TestPythonEnvironmentOfOneExecution(t *testing.T) {
	t.Parallel()
	n := startNative(t, languagePython, "BOTH=outer")
	e := n.await(n.begin(&kernelRequest{Code: "import os\n[os.environ['BOTH'], os.environ['NEW']]", Env: map[string]string{"BOTH": "inner", "NEW": "1"}}))
	if e.text() != "['inner', '1']" {
		t.Errorf(`e.text() = %v, e.failed = %v, want e.text() == "['inner', '1']"`, e.text(), e.failed)
	}
	if e := n.run("[os.environ['BOTH'], os.environ.get('NEW')]"); e.text() != "['outer', None]" {
		t.Error(e.text())
	}
}

func TestPythonInterrupt(t *testing.T) {
	t.Parallel()
	n := startNative(t, languagePython)
	for _, code := range []string{
		"print('on')\nwhile True: pass",
		"import time\nprint('on')\ntime.sleep(1000)",
		"import asyncio\nprint('on')\nawait asyncio.sleep(1000)",
		"import subprocess\nprint('on')\nsubprocess.call(['sleep', '1000'])\nwhile True: pass",
		"!echo on; sleep 1000\nwhile True: pass",
		"import threading\nprint('on')\nthreading.Event().wait()",
		"import signal\ngot = []\nsignal.signal(signal.SIGINT, lambda *_: got.append(1))\nprint('on')\nwhile not got: pass\nraise KeyboardInterrupt",
	} {
		id := n.begin(&kernelRequest{Code: code})
		n.awaitOutput("on\n")
		n.interrupt()
		if e := n.awaitInterrupted(id); e.failed == nil || e.failed.Name != "KeyboardInterrupt" {
			t.Errorf(`%q: e.failed = %+v, e.died = %v, want e.failed != nil and e.failed.Name == "KeyboardInterrupt"`,
				code, e.failed, e.died)
		}
		n.interrupt() // nothing runs
		if e := n.await(n.begin(&kernelRequest{Op: opSync})); e.died {
			t.Fatalf("%q: an interrupt of nothing has ended the kernel", code)
		}
		if e := n.run("1 + 1"); e.text() != "2" {
			t.Errorf(`after %q: e.text() = %q, e.failed = %+v, want e.text() == "2"`, code, e.text(), e.failed)
		}
	}
}

func TestPythonIgnoresHalfARequest(t *testing.T) {
	t.Parallel()
	n := startNative(t, languagePython)
	if _, err := n.in.Write([]byte(`{"op":"run","id":"x","co`)); err != nil {
		t.Fatal(err)
	}
	if e := n.run("1"); e.text() != "1" || e.count != 1 {
		t.Errorf(`e = %+v, want e.text() == "1" and e.count == 1`, e)
	}
}

func TestPythonDies(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"import os\nos._exit(3)", "import os\nos.kill(os.getpid(), 9)", "import os\nos.closerange(3, 1000)", "import ctypes\nctypes.string_at(0)"} {
		n := startNative(t, languagePython)
		if e := n.run(code); !e.died {
			t.Errorf("%q: the kernel still runs", code)
		}
	}
}

// A user's file with the name of a module must not interfere with the kernel, but can be imported by the code.
func TestPythonModulesOfTheUser(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "json.py"), []byte("raise ValueError"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "mine.py"), []byte("x = 5"), 0o600); err != nil {
		t.Fatal(err)
	}
	n := startNativeIn(t, dir, languagePython)
	if e := n.run("import mine, json\nmine.x"); e.text() != "5" {
		t.Errorf(`e.failed = %+v, e.err = %s, want e.text() == "5"`, e.failed, e.err)
	}
}

func TestPythonWritesMuch(t *testing.T) {
	t.Parallel()
	n := startNative(t, languagePython)
	if e := n.run("for i in range(300_000): print(i)"); len(e.out) != 1988890 {
		t.Errorf("%d bytes", len(e.out))
	}
	// Children that write concurrently, as much as possible at once, never corrupt an event.
	e := n.run("import subprocess\nps = [subprocess.Popen(['head', '-c', '20000000', '/dev/zero']) for _ in range(3)]\nfor i in range(200): display('x' * 20_000)\nfor p in ps: p.wait()\n'end'")
	if len(e.out) != 60_000_000 || strings.Trim(e.out, "\x00") != "" || len(e.results) != 201 || e.text() != "'end'" {
		t.Errorf("%d bytes, %d results", len(e.out), len(e.results))
	}
}
