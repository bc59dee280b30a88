// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// debianPython is the directory of Debian's Python, for which the package python3-ipykernel is.
const debianPython = "/usr/bin"

// startNotebook starts a Python kernel that uses ipykernel, with the Python that boxes on this host have.
func startNotebook(t *testing.T, env ...string) *native {
	t.Helper()
	if err := exec.CommandContext(t.Context(), filepath.Join(debianPython, "python3"), "-c", "import ipykernel").Run(); err != nil {
		boxtest.Missing(t, "ipykernel of "+debianPython+"/python3 (python3-ipykernel)")
	}
	t.Setenv("PATH", debianPython+":/bin")
	home := t.TempDir()
	return startNativeIn(t, home, languagePython, append([]string{envPythonKernel + "=" + pythonIPykernel, "HOME=" + home}, env...)...)
}

// Code in ipykernel's shell has what users of notebooks expect, with the same results as in the own kernel.
func TestANotebookRunsCode(t *testing.T) {
	n := startNotebook(t)
	n.runs([]codeCase{
		{name: "the value of the last expression", code: "x = 1; x", text: "1"},
		{name: "the state is kept", code: "x += 1; x", text: "2"},
		{name: "the history of values", code: "Out[1], _, In[1]", text: "(1, 2, 'x = 1; x')"},
		{name: "nothing has no value", code: "None"},
		{name: "a semicolon hides a value", code: "x;"},
		{name: "output", code: "import sys\nprint(1)\nprint(2, file=sys.stderr)", out: "1\n", err: "2\n"},
		{name: "output of other programs", code: "import os\nprint('a')\nos.system('echo b; echo c >&2')\nprint('d');", out: "a\nb\nd\n", err: "c\n"},
		{name: "a shell line", code: "!echo $x; false\n_exit_code", out: "2\r\n", text: "1"},
		{name: "the output of one", code: "lines = !printf 'a\\nb\\n'\nlines.n", text: `'a\nb'`},
		{name: "a magic", code: "%env OF_MAGIC=1", out: "env: OF_MAGIC=1\n"},
		{name: "a magic of a cell", code: "%%bash\necho of bash", out: "of bash\n"},
		{name: "a captured cell", code: "%%capture got\nprint('captured')"},
		{name: "what was captured", code: "got.stdout", text: `'captured\n'`},
		{name: "a magic that is none", code: "%no_such_magic", fail: "UsageError: Line magic function `%no_such_magic` not found.", err: "UsageError: Line magic function `%no_such_magic` not found.\n"},
		{name: "help", code: "get_ipython().__class__.__mro__[1].__module__", text: "'ipykernel.zmqshell'"},
		{name: "an exception", code: "1/0", fail: "ZeroDivisionError: division by zero"},
		{name: "a syntax error", code: "a b", fail: "SyntaxError: invalid syntax"},
		{name: "exit", code: "import sys\nsys.exit(3)", fail: "SystemExit: 3"},
		{name: "exit of notebooks", code: "exit()", fail: "SystemExit: "},
		{name: "await", code: "import asyncio\nawait asyncio.sleep(0, 'late')", text: "'late'"},
		{name: "input", code: "input()", fail: "EOFError: EOF when reading a line"},
		{name: "a value that cannot be shown", code: "class A:\n  def __repr__(self): raise ValueError('no')\nA()", fail: "ValueError: no"},
		{name: "an error that cannot be shown", code: "class E(Exception):\n  def __str__(self): raise ValueError('no')\nraise E()", fail: "E: (it cannot be shown)"},
		{name: "definitions of __main__", code: "import pickle\nclass P: pass\npickle.loads(pickle.dumps(P)) is P", text: "True"},
		{name: "descriptors are closed", code: "os.close(1); os.close(2); os.close(0)"},
		{name: "and are there again", code: "print('again', file=sys.stderr); os.system('echo out');", out: "out\n", err: "again\n"},
		{name: "a fork that comes back", code: "p = os.fork()\nif p: os.waitpid(p, 0)\nprint('once' if p else 'child')\np > 0", out: "child\nonce\n", text: "True"},
		{name: "a fork that exits", code: "p = os.fork()\nif not p: sys.exit(7)\nos.waitstatus_to_exitcode(os.waitpid(p, 0)[1])", text: "7"},
	})
	if e := n.run("def inner():\n    raise ValueError('why')\ninner()"); e.failed == nil || !strings.Contains(e.failed.Traceback, "----> 2     raise ValueError('why')") || strings.Contains(e.failed.Traceback, "\x1b") || e.count < 2 {
		t.Errorf("traceback %+v, count %d", e.failed, e.count)
	}
}

// Values are shown by IPython's formatters and display functions, with additional data for E2B clients.
func TestANotebookShowsValues(t *testing.T) {
	n := startNotebook(t)
	for code, want := range map[string][2]string{ // a type and what is in it, of the last result
		"from IPython.display import HTML\nHTML('<b>x</b>')":                                                       {"text/html", "<b>x</b>"},
		"from IPython.display import Markdown, display\ndisplay(Markdown('# x'))":                                  {"text/markdown", "# x"},
		"from IPython.display import SVG\nSVG('<svg xmlns=\"http://www.w3.org/2000/svg\"></svg>')":                 {"image/svg+xml", `<svg xmlns="http://www.w3.org/2000/svg"/>`},
		"class P:\n  def _repr_png_(self): return b'png'\nP()":                                                     {"image/png", "cG5n"},
		"class M:\n  def _repr_mimebundle_(self, include=None, exclude=None): return {'text/x-own': 'own'}\nM()":   {"text/x-own", "own"},
		"class D: pass\nget_ipython().display_formatter.formatters['text/html'].for_type(D, lambda d: '<d>')\nD()": {"text/html", "<d>"},
		"display({'text/latex': '$x$'}, raw=True)":                                                                 {"text/latex", "$x$"},
		"%%html\n<i>cell</i>": {"text/html", "<i>cell</i>"},
	} {
		e := n.run(code)
		if e.failed != nil || len(e.results) != 1 || strings.TrimSpace(field(e.results[0], want[0])) != want[1] {
			t.Errorf("%s: e.results = %s, e.failed = %+v, e.err = %q, want e.failed == nil and len(e.results) == 1 and strings.TrimSpace(field(e.results[0], want[0])) == want[1]",
				code, e.results, e.failed, e.err)
		}
	}
	if e := n.run("from IPython.display import JSON\nJSON({'a': [1]})"); string(e.main["application/json"]) != `{"a": [1]}` {
		t.Errorf("JSON: e.main = %s, want e.main[\"application/json\"] == `{\"a\": [1]}`", e.main)
	}
	if e := n.run("for i in range(2): display(i)\n'last'"); len(e.results) != 3 || e.text() != "'last'" {
		t.Errorf(`e.results = %s, want len(e.results) == 3 and e.text() == "'last'"`, e.results)
	}
	if e := n.run("from IPython.display import clear_output\nclear_output()"); e.failed != nil || e.out != "" {
		t.Errorf(`e.failed = %+v, e.out = %q, want e.failed == nil and e.out == ""`, e.failed, e.out)
	}
}

// Interrupted code ends, wherever it is, and the kernel keeps its state.
func TestANotebookIsInterrupted(t *testing.T) {
	n := startNotebook(t)
	n.run("x = 5")
	for name, code := range map[string]string{
		"python":       "import time\nprint('busy', flush=True)\nwhile True: time.sleep(0.01)",
		"a coroutine":  "import asyncio\nprint('busy', flush=True)\nwhile True: await asyncio.sleep(0.01)",
		"a shell line": "!echo busy; sleep 1000",
		"output":       "while True: print('busy')",
	} {
		id := n.begin(&kernelRequest{Code: code})
		n.awaitOutput("busy")
		n.interrupt()
		if e := n.awaitInterrupted(id); e.died || e.failed == nil && name != "a shell line" || e.failed != nil && e.failed.Name != "KeyboardInterrupt" {
			t.Errorf(`%s: %+v, died: e.died = %v, want e.died == false and (e.failed != nil or name == "a shell line") and (e.failed == nil or e.failed.Name == "KeyboardInterrupt")`,
				name, e.failed, e.died)
		}
		if e := n.run("x"); e.text() != "5" {
			t.Errorf(`after %s: e.text() = %q, e.failed = %+v, want e.text() == "5"`, name, e.text(), e.failed)
		}
	}
}

// Figures of the real matplotlib are shown inline after the code that makes them, with the chart's data; frames with their data,
// from a stand-in of pandas.
func TestANotebookShowsFigures(t *testing.T) {
	if err := exec.CommandContext(t.Context(), filepath.Join(debianPython, "python3"), "-c", "import matplotlib").Run(); err != nil {
		boxtest.Missing(t, "matplotlib of "+debianPython+"/python3 (python3-matplotlib)")
	}
	n := startNotebook(t)
	n.run("import matplotlib.pyplot as plt, sys, types\nclass DataFrame(dict):\n  def _repr_html_(self): return '<table>'\npd = sys.modules['pandas'] = types.ModuleType('pandas')\npd.DataFrame = DataFrame")
	for _, code := range []string{"plt.plot([1, 2], [3, 4]);", "plt.plot([1, 2], [3, 4]); plt.show()", "%matplotlib inline\nplt.plot([1, 2], [3, 4]);", "fig, ax = plt.subplots(); ax.plot([1, 2], [3, 4]); plt.close(); fig"} {
		e := n.run(code)
		if e.failed != nil || len(e.results) != 1 || !strings.HasPrefix(field(e.results[0], "image/png"), "iVBORw0KGgo") || !strings.Contains(string(e.results[0]["e2b/chart"]), `"points": [[1.0, 3.0], [2.0, 4.0]]`) {
			t.Errorf("%s: e.results = %.300s, e.failed = %+v, e.err = %s", code, e.results, e.failed, e.err)
		}
	}
	if e := n.run("plt.boxplot([1, 2, 3, 4, 100]);"); len(e.results) != 1 || !strings.Contains(string(e.results[0]["e2b/chart"]), `"median": 3`) {
		t.Errorf("e.results = %.300s, e.failed = %+v, want len(e.results) == 1 and e.results[0][\"e2b/chart\"] containing `\"median\": 3`",
			e.results, e.failed)
	}
	if e := n.run("pd.DataFrame({'a': [1, 2]})"); !strings.Contains(field(e.main, "text/html"), "<table") || string(e.main["e2b/data"]) != `{"a": [1, 2]}` {
		t.Errorf("e.main = %s, e.failed = %+v, want field(e.main, \"text/html\") containing \"<table\" and e.main[\"e2b/data\"] == `{\"a\": [1, 2]}`",
			e.main, e.failed)
	}
	if e := n.run("%matplotlib qt"); e.failed == nil {
		t.Error("no error for a backend that opens windows")
	}
}

// If the operator requires ipykernel and Python cannot use it, code fails with the reason; if either kernel may be used, boxd's
// own works as usual: with a package that cannot be imported, and with one whose shell cannot start, for example because the home
// directory is full.
func TestWithoutIPykernel(t *testing.T) {
	t.Parallel()
	for why, files := range map[string]map[string]string{
		"ImportError: broken":    {"__init__.py": "raise ImportError('broken')"},
		"OSError: no room there": {"__init__.py": "", "zmqshell.py": "class ZMQInteractiveShell:\n    @classmethod\n    def instance(cls, **_):\n        raise OSError('no room there')\n"},
	} {
		broken := t.TempDir()
		if err := os.Mkdir(filepath.Join(broken, "ipykernel"), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(broken, "ipykernel", name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for wanted, fail := range map[string]string{pythonAuto: "", pythonOwn: "", pythonIPykernel: "ImportError: the operator's python_kernel is ipykernel, and python3 of the sandbox cannot use it: " + why} {
			n := startNative(t, languagePython, envPythonKernel+"="+wanted, "PYTHONPATH="+broken)
			e := n.run("display(1)\nx = 6\nx * 7")
			got := ""
			if e.failed != nil {
				got = e.failed.Name + ": " + e.failed.Value
			}
			if !strings.HasPrefix(got, fail) || fail == "" && (got != "" || e.text() != "42") {
				t.Errorf(`%s, %s: e.text() = %q, got %q, want got starting with %q and (fail != "" or got == "" and e.text() == "42")`,
					why, wanted, e.text(), got, fail)
			}
		}
	}
}
