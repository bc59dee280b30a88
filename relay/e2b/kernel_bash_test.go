// SPDX-License-Identifier: Apache-2.0

package e2b

import (
	"strings"
	"testing"
)

func TestBashRunsCode(t *testing.T) {
	t.Parallel()
	n := startNative(t, languageBash)
	for _, c := range []struct{ name, code, out, err, fail string }{
		{name: "output", code: "echo a; echo b >&2", out: "a\n", err: "b\n"},
		{name: "variables", code: "x='a  b'; declare -A map=([k]=v); f() { echo \"f $1\"; }; export E=e"},
		{name: "are kept", code: `echo "$x ${map[k]}"; f 1; bash -c 'echo $E'`, out: "a  b v\nf 1\ne\n"},
		{name: "a failure", code: "echo a; false", out: "a\n", fail: "exit status 1"},
		{name: "several lines", code: "cat <<END\nä$x'\\\"\nEND\nfor i in 1 2; do\n  echo $i\ndone", out: "äa  b'\\\"\n1\n2\n"},
		{name: "a syntax error", code: "if", err: "bash: eval: line ", fail: "exit status 2"},
		{name: "nothing", code: ""},
		{name: "break", code: "echo a; break; echo b", out: "a\n"},
		{name: "continue", code: "echo a; continue; echo b", out: "a\n"},
		{name: "exit", code: "y=1; cd /; echo a; exit 3; echo b", out: "a\n", fail: "exit status 3"},
		{name: "all is kept", code: `echo "$x $y ${map[k]} $PWD"; f 2`, out: "a  b 1 v /\nf 2\n"},
		{name: "exit with nothing", code: "exit 0"},
		{name: "set -e", code: "set -euo pipefail; echo a; false; echo b", out: "a\n", fail: "exit status 1"},
		{name: "is over", code: "false; echo $nothing_of_it c", out: "c\n"},
		{name: "set -x", code: "set -x; : a", err: "++ : a\n"},
		{name: "the output is changed", code: "exec >/dev/null 2>&1; echo a"},
		{name: "and is there again", code: "echo a; exec 0<&- 1>&- 2>&-", out: "a\n"},
		{name: "and again", code: "echo a", out: "a\n"},
		{name: "input", code: "read -r line; echo \"$?$line\"", out: "1\n"},
		{name: "pipes", code: "seq 3 | while read -r i; do echo \"<$i>\"; done", out: "<1>\n<2>\n<3>\n"},
		{name: "subshells", code: "(exit 3); echo $?; v=$(exit 4; echo no); echo $?", out: "3\n4\n"},
		{name: "traps", code: "trap 'echo mine' EXIT; trap : INT; trap -p EXIT", out: "trap -- 'echo mine' EXIT\n"},
		{name: "functions of the same names", code: "printf() { echo no; }; read() { echo no; }; trap() { echo no; }; unset -f read"},
		{name: "do no harm", code: "builtin printf 'yes\\n'", out: "yes\n"},
	} {
		e := n.run(c.code)
		if e.died {
			t.Fatalf("%s: the kernel died: e.err = %s, want e.died == false", c.name, e.err)
		}
		fail := ""
		if e.failed != nil {
			fail = e.failed.Value
		}
		if e.out != c.out || !strings.HasPrefix(e.err, c.err) || (c.err == "") != (e.err == "") || fail != c.fail {
			t.Errorf("%s: out %q, err %q, error %q", c.name, e.out, e.err, fail)
		}
	}
	if e := n.run("true"); e.count != 25 {
		t.Errorf("%d executions", e.count)
	}
	e := n.await(n.begin(&kernelRequest{Code: "echo \"$BOTH $NEW\"", Env: map[string]string{"BOTH": "i'n", "NEW": "\n$x"}}))
	if e.out != "i'n \n$x\n" {
		t.Errorf(`e.out = %q, want "i'n \n$x\n"`, e.out)
	}
	if e := n.run("echo \"$BOTH${NEW-none}\""); e.out != "none\n" {
		t.Errorf(`e.out = %q, want "none\n"`, e.out)
	}
	if _, err := n.in.Write([]byte("17 run x $'echo")); err != nil {
		t.Fatal(err)
	}
	if e := n.run("echo a"); e.out != "a\n" || e.err != "" {
		t.Errorf(`after half a request: e.out = %q, e.err = %q, want e.out == "a\n" and e.err == ""`, e.out, e.err)
	}
}

func TestBashInterrupt(t *testing.T) {
	t.Parallel()
	n := startNative(t, languageBash)
	n.run("kept=1")
	for _, code := range []string{
		"echo on; while :; do :; done; echo no",
		"echo on; sleep 1000; echo no",
		"f() { while :; do sleep 1000; done; }; echo on; f; echo no",
		"echo on; sleep 1000 | cat; echo no",
	} {
		id := n.begin(&kernelRequest{Code: code})
		n.awaitOutput("on\n")
		n.interrupt()
		if e := n.awaitInterrupted(id); e.failed == nil || e.failed.Name != "KeyboardInterrupt" || e.out != "on\n" {
			t.Errorf(`%q: e.failed = %+v, e.died = %v, e.out = %q, want e.failed != nil and e.failed.Name == "KeyboardInterrupt" and e.out == "on\n"`,
				code, e.failed, e.died, e.out)
		}
		n.await(n.begin(&kernelRequest{Op: opSync})) // by now the replaced bash runs
		n.interrupt()                                // nothing runs
		if e := n.await(n.begin(&kernelRequest{Op: opSync})); e.died {
			t.Fatalf("%q: an interrupt of nothing has ended the kernel", code)
		}
		if e := n.run("echo $kept"); e.out != "1\n" {
			t.Errorf(`after %q: e.out = %q, e.failed = %+v, want e.out == "1\n"`, code, e.out, e.failed)
		}
	}
}
