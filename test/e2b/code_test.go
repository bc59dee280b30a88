// SPDX-License-Identifier: Apache-2.0

package e2b_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// interpreter is a client of port 49999 of one sandbox.
type interpreter struct {
	t       *testing.T
	host    *host
	sandbox *sandbox
	http    *http.Client
}

func startInterpreter(t *testing.T, configuration ...string) *interpreter {
	t.Helper()
	boxtest.RequireProgram(t, "python3")
	h := start(t, configuration...)
	c := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(c.CloseIdleConnections)
	return &interpreter{t: t, host: h, http: c, sandbox: h.create(t, "agent", `{"templateID":"code-interpreter-v1","envVars":{"OF_SANDBOX":"s"}}`)}
}

func (i *interpreter) request(ctx context.Context, method, path string, body any) *http.Response {
	i.t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		i.t.Fatal(err)
	}
	if body == nil {
		data = nil
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://"+i.host.address+path, bytes.NewReader(data))
	if err != nil {
		i.t.Fatal(err)
	}
	if path == "/execute" {
		r.Header.Set("X-Access-Token", i.sandbox.Token)
	} else {
		r.Header.Set("E2B-Traffic-Access-Token", i.sandbox.Traffic)
	}
	r.Header.Set("E2b-Sandbox-Id", i.sandbox.ID)
	r.Header.Set("E2b-Sandbox-Port", "49999")
	answer, err := i.http.Do(r)
	if err != nil {
		i.t.Fatal(err)
	}
	return answer
}

// do makes a request and returns the status and body of the answer.
func (i *interpreter) do(method, path string, body any) (int, string) {
	i.t.Helper()
	answer := i.request(i.t.Context(), method, path, body)
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		i.t.Fatal(err)
	}
	return answer.StatusCode, string(data)
}

type codeContext struct{ ID, Language, Cwd string }

func (i *interpreter) create(body any) codeContext {
	i.t.Helper()
	status, text := i.do("POST", "/contexts", body)
	var c codeContext
	if err := json.Unmarshal([]byte(text), &c); err != nil || status != http.StatusOK {
		i.t.Fatalf("status = %d, text = %s, want no error and status == 200", status, text)
	}
	return c
}

func (i *interpreter) contexts() (list []codeContext) {
	i.t.Helper()
	status, text := i.do("GET", "/contexts", nil)
	if err := json.Unmarshal([]byte(text), &list); err != nil || status != http.StatusOK {
		i.t.Fatalf("status = %d, text = %s, want no error and status == 200", status, text)
	}
	return list
}

type codeRequest struct {
	Code     string            `json:"code"`
	Context  string            `json:"context_id,omitempty"`
	Language string            `json:"language,omitempty"`
	Env      map[string]string `json:"env_vars,omitempty"`
}

// event is a line of an /execute answer.
type event struct {
	Type             string
	Text             string
	Name             string
	Value, Traceback string
	Count            int             `json:"execution_count"`
	Main             bool            `json:"is_main_result"`
	Extra            json.RawMessage `json:"extra"`
}

// cell is the outcome of an execution.
type cell struct {
	out, err, text string
	failed         string // name and value of the error
	count          int
	results        int
	types          []string
}

// running is an execution whose answer is being read.
type running struct {
	i      *interpreter
	body   io.ReadCloser
	lines  *bufio.Reader
	hangUp context.CancelFunc
}

func (i *interpreter) begin(req codeRequest) *running {
	i.t.Helper()
	ctx, cancel := context.WithCancel(i.t.Context())
	i.t.Cleanup(cancel)
	answer := i.request(ctx, "POST", "/execute", req)
	i.t.Cleanup(func() { answer.Body.Close() })
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(answer.Body)
		i.t.Fatalf("answer.StatusCode = %d, text = %s, want answer.StatusCode == 200", answer.StatusCode, text)
	}
	return &running{i: i, body: answer.Body, lines: bufio.NewReader(answer.Body), hangUp: cancel}
}

// next returns the next event, nil at the end.
func (r *running) next() *event {
	r.i.t.Helper()
	line, err := r.lines.ReadBytes('\n')
	if errors.Is(err, io.EOF) && len(line) == 0 {
		r.body.Close()
		r.hangUp()
		return nil
	}
	var e event
	if err == nil {
		err = json.Unmarshal(line, &e)
	}
	if err != nil {
		r.i.t.Fatalf("%q: %v", line[:min(len(line), 200)], err)
	}
	return &e
}

// await waits for an event of a type with a text.
func (r *running) await(kind, text string) {
	r.i.t.Helper()
	for e := r.next(); ; e = r.next() {
		if e == nil {
			r.i.t.Fatalf("no %s %q", kind, text)
		}
		if e.Type == kind && strings.Contains(e.Text, text) {
			return
		}
	}
}

func (r *running) end() *cell {
	r.i.t.Helper()
	o := &cell{}
	for e := r.next(); e != nil; e = r.next() {
		switch o.types = append(o.types, e.Type); e.Type {
		case "number_of_executions":
			o.count = e.Count
		case "stdout":
			o.out += e.Text
		case "stderr":
			o.err += e.Text
		case "result":
			if o.results++; e.Main {
				o.text = e.Text
			}
		case "error":
			o.failed = e.Name + ": " + e.Value
		}
	}
	if n := len(o.types); n < 2 || o.types[n-1] != "end_of_execution" {
		r.i.t.Errorf("events %q", o.types)
	}
	return o
}

func (i *interpreter) run(code string) *cell {
	i.t.Helper()
	return i.begin(codeRequest{Code: code}).end()
}

func TestCodeKeepsItsState(t *testing.T) {
	t.Parallel()
	i := startInterpreter(t)
	home := i.run("import os; os.environ['HOME']").text
	if o := i.begin(codeRequest{Code: "os.environ['OF_SANDBOX']"}).end(); o.text != "s" || home == "" {
		t.Errorf("%+v, home %s", o, home)
	}
	if o := i.run("x = 1; x"); o.text != "1" || o.count != 3 || o.types[0] != "number_of_executions" {
		t.Errorf(`o = %+v, want o.text == "1" and o.count == 3 and o.types[0] == "number_of_executions"`, o)
	}
	if o := i.run("import os\nx += 1\nprint('hello')\nprint(os.getcwd())\n'quoted'"); o.text != "quoted" || o.out != "hello\n"+home+"\n" || o.count != 4 {
		t.Errorf(`o = %+v, want o.text == "quoted" and o.out == "hello\n" + home + "\n" and o.count == 4`, o)
	}
	// A line is one event, since clients count them.
	if o := i.run("print(x)"); len(o.types) != 3 || o.out != "2\n" {
		t.Errorf(`o = %+v, want len(o.types) == 3 and o.out == "2\n"`, o)
	}
	if o := i.begin(codeRequest{Code: "import os; os.environ['A']", Env: map[string]string{"A": "b"}}).end(); o.text != "b" {
		t.Errorf(`o = %+v, want o.text == "b"`, o)
	}
	if o := i.run("os.environ.get('A')\n1/0"); o.failed != "ZeroDivisionError: division by zero" {
		t.Errorf(`o = %+v, want o.failed == "ZeroDivisionError: division by zero"`, o)
	}
	for _, c := range []struct {
		body   any
		status int
		text   string
	}{
		{codeRequest{Code: "1", Context: "x", Language: "python"}, 400, "Only one of"},
		{codeRequest{Code: "1", Context: "nobody"}, 404, `Context "nobody" not found`},
		{codeRequest{Code: "1", Language: "cobol"}, 500, "must be "},
		{[]string{"x"}, 400, "cannot read the body"},
	} {
		if status, text := i.do("POST", "/execute", c.body); status != c.status || !strings.Contains(text, c.text) {
			t.Errorf("%+v: status = %d, text = %s, want status == %v and text containing %q",
				c.body, status, text, c.status, c.text)
		}
	}
}

func TestCodeOfOtherLanguages(t *testing.T) {
	t.Parallel()
	boxtest.RequireProgram(t, "node")
	boxtest.RequireProgram(t, "bash")
	i := startInterpreter(t)
	in := func(language, code string) *cell {
		t.Helper()
		return i.begin(codeRequest{Code: code, Language: language, Env: map[string]string{"OF_EXECUTION": "e"}}).end()
	}
	if o := in("js", "import { cwd } from 'process'; let x = 1; console.log(process.env.OF_SANDBOX + process.env.OF_EXECUTION); cwd() === process.env.HOME"); o.text != "true" || o.out != "se\n" || o.count != 1 {
		t.Errorf(`o = %+v, want o.text == "true" and o.out == "se\n" and o.count == 1`, o)
	}
	if o := in("javascript", "x + await Promise.resolve(1)"); o.text != "2" || o.count != 2 {
		t.Errorf(`o = %+v, want o.text == "2" and o.count == 2`, o)
	}
	if o := in("ts", "const y: number = x; y"); o.text != "1" && !strings.HasPrefix(o.failed, "TypeScriptUnavailable: TypeScript needs") || o.count != 3 {
		t.Errorf(`o = %+v, want (o.text == "1" or o.failed starting with "TypeScriptUnavailable: TypeScript needs") and o.count == 3`,
			o)
	}
	if o := in("bash", "v=1; echo $OF_SANDBOX$OF_EXECUTION; pwd >&2"); o.out != "se\n" || o.err == "" || o.failed != "" {
		t.Errorf(`o = %+v, want o.out == "se\n" and o.err != "" and o.failed == ""`, o)
	}
	if o := in("sh", "echo $v${OF_SANDBOX}; exit 3"); o.out != "1s\n" || o.failed != "ExitStatus: exit status 3" || o.count != 2 {
		t.Errorf(`o = %+v, want o.out == "1s\n" and o.failed == "ExitStatus: exit status 3" and o.count == 2`, o)
	}
	c := i.create(map[string]string{"language": "typescript"})
	if c.Language != "javascript" {
		t.Errorf(`c = %+v, want c.Language == "javascript"`, c)
	}
	for language, code := range map[string][]string{
		"js":   {"console.log('on'); while (true);", "console.log('on'); await new Promise(() => {})", "console.log('on'); for (;;) console.log('x'.repeat(1000))"},
		"bash": {"echo on; while :; do :; done", "echo on; sleep 1000", "echo on; yes"},
	} {
		for _, code := range code {
			r := i.begin(codeRequest{Code: code, Language: language})
			r.await("stdout", "on")
			r.hangUp()
			if o := in(language, map[string]string{"js": "x", "bash": "echo $v"}[language]); strings.TrimSpace(o.text+o.out) != "1" {
				t.Errorf(`after %s: o = %+v, want strings.TrimSpace(o.text + o.out) == "1"`, code, o)
			}
		}
	}
	for code, how := range map[string]string{"process.kill(process.pid, 9)": "SIGKILL", "process.reallyExit(4)": "exit status 4"} {
		if o := in("js", code); !strings.HasPrefix(o.failed, "KernelDied: kernel died: "+how) {
			t.Errorf(`o = %+v, want o.failed starting with "KernelDied: kernel died: " + how`, o)
		}
	}
	if o := in("js", "typeof x"); o.text != "undefined" || o.count != 1 {
		t.Errorf(`o = %+v, want o.text == "undefined" and o.count == 1`, o)
	}
}

func TestCodeContextsAreApart(t *testing.T) {
	t.Parallel()
	i := startInterpreter(t)
	languages := func() (list []string) {
		for _, c := range i.contexts() {
			list = append(list, c.Language)
		}
		return list
	}
	if list := strings.Join(languages(), " "); !strings.Contains(list, "python") {
		t.Error(list)
	}
	c := i.create(map[string]string{"language": "python", "cwd": "/tmp"})
	if c.ID == "" || c.Language != "python" || c.Cwd != "/tmp" {
		t.Errorf(`c = %+v, want c.ID != "" and c.Language == "python" and c.Cwd == "/tmp"`, c)
	}
	if list := i.contexts(); list[len(list)-1] != c {
		t.Errorf("list = %+v, want list[len(list)-1] == c", list)
	}
	i.run("x = 'default'")
	if o := i.begin(codeRequest{Code: "import os\nx = os.getcwd()\nx", Context: c.ID}).end(); o.text != "/tmp" {
		t.Errorf(`o = %+v, want o.text == "/tmp"`, o)
	}
	if o := i.run("x"); o.text != "default" {
		t.Errorf(`o = %+v, want o.text == "default"`, o)
	}
	if status, text := i.do("POST", "/contexts/"+c.ID+"/restart", nil); status != 200 {
		t.Errorf("status = %d, text = %s, want status == 200", status, text)
	}
	if o := i.begin(codeRequest{Code: "x", Context: c.ID}).end(); o.failed != "NameError: name 'x' is not defined" || o.count != 1 {
		t.Errorf(`o = %+v, want o.failed == "NameError: name 'x' is not defined" and o.count == 1`, o)
	}
	// Code that runs in a context ends when the context is removed.
	r := i.begin(codeRequest{Code: "print('on')\nimport time; time.sleep(1000)", Context: c.ID})
	r.await("stdout", "on")
	if status, text := i.do("DELETE", "/contexts/"+c.ID, nil); status != 200 {
		t.Errorf("status = %d, text = %s, want status == 200", status, text)
	}
	if o := r.end(); !strings.HasPrefix(o.failed, "ContextRestarting: ") {
		t.Errorf(`o = %+v, want o.failed starting with "ContextRestarting: "`, o)
	}
	for _, p := range [][2]string{{"DELETE", "/contexts/" + c.ID}, {"POST", "/contexts/" + c.ID + "/restart"}} {
		if status, _ := i.do(p[0], p[1], nil); status != 404 {
			t.Errorf("%s %s: status = %d, want 404", p[0], p[1], status)
		}
	}
	// The number of contexts is limited.
	status := 200
	for n := 0; status == 200; n++ {
		if status, _ = i.do("POST", "/contexts", nil); status != 200 && (n > 15 || status != 429) {
			t.Errorf("context %d: status = %d, want status == 200 or n <= 15 and status == 429", n, status)
		}
	}
}

// The template of a sandbox sets where its programs and its code start, where relative paths begin, and the languages of code.
func TestATemplateSaysWhereProgramsStartAndInWhat(t *testing.T) {
	t.Parallel()
	i := startInterpreter(t, "[e2b.templates.app]\ncwd = \"/opt\"\nlanguages = [\"bash\", \"python\"]\naliases = [\"other\"]\n")
	i.sandbox = i.host.create(t, "agent", `{"templateID":"other"}`)
	if got := i.sandbox.sh(t, "pwd; cd; pwd").stdout.String(); got != "/opt\n/home/user\n" {
		t.Errorf(`got %q, want "/opt\n/home/user\n"`, got)
	}
	for name, path := range map[string]string{"here": "/opt/here", "~/there": "/home/user/there"} {
		if status, text, _ := i.sandbox.sent(t, "POST", "/files?path="+name, "x"); status != http.StatusOK || !strings.Contains(text, `"path":"`+path+`"`) {
			t.Errorf("%s: status = %d, text = %s, want status == 200 and text containing `\"path\":\"` + path + `\"`",
				name, status, text)
		}
	}
	if list := i.contexts(); len(list) != 1 || list[0].Language != "python" || list[0].Cwd != "/opt" {
		t.Errorf(`list = %+v, want len(list) == 1 and list[0].Language == "python" and list[0].Cwd == "/opt"`, list)
	}
	if c := i.create(map[string]string{"cwd": "sub/.."}); c.Language != "bash" || c.Cwd != "/opt" {
		t.Errorf(`c = %+v, want c.Language == "bash" and c.Cwd == "/opt"`, c)
	}
	if o := i.run("pwd; echo $BASH_VERSION"); !strings.HasPrefix(o.out, "/opt\n") || len(o.out) < len("/opt\n5") {
		t.Errorf(`o = %+v, want o.out starting with "/opt\n" and len(o.out) >= len("/opt\n5")`, o)
	}
	if o := i.begin(codeRequest{Code: "import os; os.getcwd()", Language: "py"}).end(); o.text != "/opt" {
		t.Errorf(`o = %+v, want o.text == "/opt"`, o)
	}
	for _, path := range []string{"/execute", "/contexts"} {
		if status, text := i.do("POST", path, map[string]string{"code": "1", "language": "js"}); status != http.StatusInternalServerError || text != `language = "js": must be bash or python` {
			t.Errorf("%s: status = %d, text = %s, want status == 500 and text == `language = \"js\": must be bash or python`",
				path, status, text)
		}
	}
}

// If a sandbox ends while code runs, the answer breaks off, and does not report that the code has ended.
func TestCodeOfASandboxThatEnds(t *testing.T) {
	t.Parallel()
	i := startInterpreter(t)
	r := i.begin(codeRequest{Code: "print('on')\nimport time; time.sleep(1000)"})
	r.await("stdout", "on")
	if status, text, _ := i.host.asks(t, "agent", "DELETE", "/sandboxes/"+i.sandbox.ID, ""); status != http.StatusNoContent {
		t.Errorf("status = %d, text = %s, want status == 204", status, text)
	}
	if rest, err := io.ReadAll(r.lines); err == nil {
		t.Errorf("the answer ends with %q, want an error", rest)
	}
	if status, text := i.do("POST", "/execute", codeRequest{Code: "1"}); status != http.StatusBadGateway {
		t.Errorf("status = %d, text = %s, want status == 502", status, text)
	}
}

func TestCodeRunsOneAfterAnother(t *testing.T) {
	t.Parallel()
	i := startInterpreter(t)
	i.run("n = 0")
	var wg sync.WaitGroup
	for range 8 {
		r := make(chan *cell, 1)
		wg.Go(func() { r <- i.run("import time\nm = n\ntime.sleep(.02)\nn = m + 1") })
	}
	wg.Wait()
	if o := i.run("n"); o.text != "8" {
		t.Errorf(`o = %+v, want o.text == "8"`, o)
	}
}

func TestCodeOfAClientThatHangsUpIsInterrupted(t *testing.T) {
	t.Parallel()
	i := startInterpreter(t)
	for _, code := range []string{
		"while True: pass",
		"import time; time.sleep(1000)",
		"while True: print('x' * 1000)",
		"import subprocess; subprocess.call(['sleep', '1000'])",
	} {
		r := i.begin(codeRequest{Code: "print('on')\n" + code})
		r.await("stdout", "on")
		r.hangUp()
		if o := i.run("1 + 1"); o.text != "2" || o.failed != "" {
			t.Errorf(`after %s: o = %+v, want o.text == "2" and o.failed == ""`, code, o)
		}
	}
	if o := i.run("1"); o.count != 9 {
		t.Errorf("%+v: not the same kernel", o)
	}
}

// A kernel and its state survive boxd. The next boxd interrupts an execution that was running when boxd ended.
func TestCodeOutlivesBoxd(t *testing.T) {
	t.Parallel()
	boxtest.RequireProgram(t, "node")
	i := startInterpreter(t, boxtest.Lasting)
	c := i.create(map[string]string{"cwd": "/tmp"})
	i.run("x = 'kept'")
	i.begin(codeRequest{Code: "y = 'kept too'", Context: c.ID}).end()
	r := i.begin(codeRequest{Code: "print('on')\nwhile True: print('much' * 1000)"})
	r.await("stdout", "on")
	js := i.begin(codeRequest{Code: "console.log('on'); let x = 1; while (true);", Language: "js"})
	js.await("stdout", "on")
	i.host.Kill()
	r.hangUp()
	js.hangUp()
	i.host.Restart()
	if o := i.run("x"); o.text != "kept" || o.count != 3 {
		t.Errorf(`o = %+v, want o.text == "kept" and o.count == 3`, o)
	}
	if o := i.begin(codeRequest{Code: "x", Language: "js"}).end(); o.text != "1" || o.count != 2 {
		t.Errorf(`o = %+v, want o.text == "1" and o.count == 2`, o)
	}
	if o := i.begin(codeRequest{Code: "y", Context: c.ID}).end(); o.text != "kept too" || o.count != 2 {
		t.Errorf(`o = %+v, want o.text == "kept too" and o.count == 2`, o)
	}
	if list := i.contexts(); list[len(list)-1] != c {
		t.Errorf("list = %+v, want list[len(list)-1] == c", list)
	}
}

func TestCodeThatKillsItsKernel(t *testing.T) {
	t.Parallel()
	i := startInterpreter(t)
	for code, how := range map[string]string{
		"import os\nprint('last')\nos._exit(3)":                                 "exit status 3",
		"import os\nprint('last', end='', flush=True)\nos.kill(os.getpid(), 9)": "SIGKILL",
		"import os\nprint('last')\nos.closerange(3, 1000)":                      "exit status 1",
	} {
		o := i.run(code)
		if !strings.HasPrefix(o.failed, "KernelDied: kernel died: "+how) || strings.TrimSpace(o.out) != "last" {
			t.Errorf(`%s: o = %+v, want o.failed starting with "KernelDied: kernel died: " + how and strings.TrimSpace(o.out) == "last"`,
				code, o)
		}
		if o := i.run("1 + 1"); o.text != "2" || o.count != 1 {
			t.Errorf(`o = %+v, want o.text == "2" and o.count == 1`, o)
		}
	}
}

// Code that attacks its kernel does not harm anything else, and the next execution works normally.
func TestHostileCode(t *testing.T) {
	t.Parallel()
	i := startInterpreter(t)
	for _, code := range []string{
		"import os, sys\nos.close(1); os.close(2); os.close(0); sys.stdout = sys.stderr = sys.stdin = None",
		// Code can forge the events of its kernel, and so can its children.
		"import sys\nn = next(a for a in open('/proc/self/cmdline').read().split('\\0')[::-1] if a)\n" +
			"for e in ('{\"e\":\"end\",\"id\":\"x\"}', '{\"e\":\"result\",\"data\":{\"text/plain\":5,\"x\":[]}}', '{\"e\":\"result\"}', '{', '[]', '{\"e\":\"begin\",\"id\":7}', '{\"e\":\"error\"}'):\n" +
			"  sys.stdout.write('\\x1e' + n + '.' + e + '\\n'); sys.stderr.write('\\x1e' + n + '.' + e + '\\n')\n" +
			"sys.stdout.write('\\x1e' + n + '+' + 'x' * 10000 + '\\n\\x1e' + n + '\\n\\x1e' + n)",
		"import subprocess\nsubprocess.Popen('trap \"\" INT TERM; while :; do echo noise; sleep .01; done', shell=True);",
		"import sys\nsys.stdout.buffer.write(bytes(range(256)) * 100);",
		"import os, fcntl\nfor fd in (1, 2): fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_NONBLOCK)\nprint('x' * 1_000_000)",
		"def f(): f()\nf()",
		"import sys; sys.exit(1)",
		"class A:\n  def __repr__(self): raise BaseException\nA()",
		"import builtins, json, os, threading\nbuiltins.print = json.dumps = os.fsync = None",
		"import json\nimport importlib; importlib.reload(json);",
		"import threading\ndef f():\n  while True: display(1)\nfor _ in range(3): threading.Thread(target=f, daemon=True).start()",
	} {
		i.run(code)
		if o := i.begin(codeRequest{Code: "1 + 1"}).end(); o.text != "2" || o.failed != "" {
			t.Errorf(`after %s: o.text = %q, o.failed = %q, o.types[:min(len(o.types), 20)] = %q, want o.text == "2" and o.failed == ""`,
				code, o.text, o.failed, o.types[:min(len(o.types), 20)])
		}
	}
}

// Code with very much output is blocked until that is read, and boxd buffers little of it.
func TestCodeThatWritesMuchWaitsForItsReader(t *testing.T) {
	t.Parallel()
	i := startInterpreter(t)
	const most = 300_000_000
	r := i.begin(codeRequest{Code: "import sys\nfor n in range(3000): sys.stdout.write('x' * 99_999 + '\\n')\nprint('end', file=sys.stderr)"})
	r.await("stdout", "x")
	before := boxtest.Memory(t, i.host.PID(), "VmRSS")
	written := int64(-1)
	i.host.Owner = "agent"
	defer func() { i.host.Owner = "" }()
	boxtest.Eventually(t, "the code is blocked in its write", func() bool {
		p, err := i.host.Process(t.Context(), i.sandbox.ID, "code-python", 0)
		if err != nil {
			t.Fatal(err)
		}
		before := written
		written = p.Output[0].Bytes
		return written == before
	})
	if written > most/2 {
		t.Errorf("the code has written %d bytes ahead of its reader", written)
	}
	got := 0
	var last string
	for e := r.next(); e != nil; e = r.next() {
		if e.Type == "stdout" {
			got += len(e.Text)
		}
		last = e.Type
	}
	if got > most || got < most-100_000 || last != "end_of_execution" {
		t.Errorf("%d bytes, then %s", got, last)
	}
	if after := boxtest.Memory(t, i.host.PID(), "VmRSS"); after-before > 64<<20 {
		t.Errorf("boxd has %d bytes more", after-before)
	}
}

// If the operator enables ipykernel for Python code, a sandbox whose Python has it uses IPython's shell, which keeps its state
// across restarts of boxd; a sandbox of a template that disables it uses boxd's own kernel.
func TestCodeRunsInIPykernel(t *testing.T) {
	t.Parallel()
	if exec.CommandContext(t.Context(), "/usr/bin/python3", "-c", "import ipykernel").Run() != nil {
		boxtest.Missing(t, "ipykernel of /usr/bin/python3 (python3-ipykernel)")
	}
	i := startInterpreter(t, "python_kernel = \"auto\"", "[e2b.templates.plain]\npython_kernel = \"own\"", boxtest.Lasting)
	const which = "get_ipython().__class__.__mro__[1].__module__"
	if o := i.run(which); o.text != "ipykernel.zmqshell" {
		t.Fatalf(`o = %+v, want o.text == "ipykernel.zmqshell"`, o)
	}
	i.run("x = 'kept'")
	if o := i.run("%pwd"); o.text != "/home/user" || o.count != 3 {
		t.Errorf(`o = %+v, want o.text == "/home/user" and o.count == 3`, o)
	}
	if o := i.run("import time\n1/0"); o.failed != "ZeroDivisionError: division by zero" {
		t.Errorf(`o = %+v, want o.failed == "ZeroDivisionError: division by zero"`, o)
	}
	r := i.begin(codeRequest{Code: "print('on')\nwhile True: print('much' * 1000)"})
	r.await("stdout", "on")
	i.host.Kill()
	r.hangUp()
	i.host.Restart()
	if o := i.run("x"); o.text != "kept" || o.count != 6 {
		t.Errorf(`of the next boxd: o = %+v, want o.text == "kept" and o.count == 6`, o)
	}
	r = i.begin(codeRequest{Code: "print('on')\nwhile True: time.sleep(0.01)"})
	r.await("stdout", "on")
	r.hangUp() // this interrupts it
	if o := i.run("!echo of $x"); o.out != "of kept\r\n" || o.failed != "" {
		t.Errorf(`after an interrupt: o = %+v, want o.out == "of kept\r\n" and o.failed == ""`, o)
	}
	if status, text := i.do("POST", "/contexts/python/restart", nil); status >= 300 {
		t.Errorf("restarted: status = %d, text = %s, want status < 300", status, text)
	}
	if o := i.run("x"); !strings.HasPrefix(o.failed, "NameError") || o.count != 1 {
		t.Errorf(`after a restart: o = %+v, want o.failed starting with "NameError" and o.count == 1`, o)
	}
	i.sandbox = i.host.create(t, "agent", `{"templateID":"plain"}`)
	if o := i.run(which); o.text == "ipykernel.zmqshell" {
		t.Errorf(`of the template: o = %+v, want o.text != "ipykernel.zmqshell"`, o)
	}
}
