// SPDX-License-Identifier: Apache-2.0

package sessionfiles

import (
	"errors"
	"path"
	"strings"
	"testing"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/supervisor/session"
)

func TestAFailedEnvironmentInstallIsReported(t *testing.T) {
	t.Parallel()
	exited := func(code int, said string) session.Result {
		return session.Result{Status: session.StatusExited, ExitCode: code, Streams: [2]session.Stream{{}, {Data: []byte(said)}}}
	}
	for name, tc := range map[string]struct {
		r    session.Result
		kind fault.Kind
		text string // part of the error or its hint
	}{
		"late":      {session.Result{Status: session.StatusTimedOut}, fault.Exhausted, "timeout"},
		"memory":    {session.Result{Status: session.StatusOOMKilled}, fault.Exhausted, "memory"},
		"lost":      {session.Result{Status: session.StatusLost}, fault.Conflict, ""},
		"no python": {session.Result{Status: session.StatusStartFailed, Failed: &isolation.StepError{Errno: unix.ENOENT}}, fault.Unsupported, "python3"},
		"no fork":   {session.Result{Status: session.StatusStartFailed, Failed: &isolation.StepError{Errno: unix.EAGAIN}}, fault.Unavailable, "limit"},
		"nothing":   {exited(codeNothing, "none"), fault.Conflict, "needs no"},
		"no venv":   {exited(codeNoVenv, "no module"), fault.Unsupported, "python3-venv"},
		"no pip":    {exited(codeNoPip, "no pip"), fault.Unsupported, "python3-pip"},
		"no room":   {exited(codeNoRoom, "No space left"), fault.Conflict, "No space left"},
		"pip":       {exited(codeFailed, "no such \x1b[31mpackage"), fault.Conflict, "no such \uFFFD[31mpackage"},
		"killed":    {session.Result{Status: session.StatusSignaled, Signal: "SIGKILL"}, fault.Conflict, "gave no reason"},
	} {
		err := failure("s", "k", "off", &tc.r)
		f, ok := errors.AsType[*fault.Error](err)
		if !ok || name != "lost" && f.Kind != tc.kind || !strings.Contains(f.Error()+f.Hint, tc.text) {
			t.Errorf(`%s: err = %v, want ok == true and (name == "lost" or f.Kind == tc.kind) and f.Error() + f.Hint containing %q`,
				name, err, tc.text)
		}
	}
	if err := failure("s", "k", "off", &session.Result{Status: session.StatusExited}); err != nil {
		t.Error(err)
	}
}

func FuzzParse(f *testing.F) {
	for _, said := range []string{
		`{"path":"/workspace/.skill-envs/a/b","python":"3.11.2","made":true}`, "noise\n{\"path\":\"/a\",\"python\":\"3.1.2\"}\n", "", "{}", "[]", `{"path":"a","python":"3.1.1"}`,
		`{"path":"/a/../b","python":"3.1.1"}`, `{"path":"/a\u001b","python":"3.1.1"}`, `{"path":"/a","python":"3.1"}`, `{"path":"/a","python":"3.1.1\n"}`,
	} {
		f.Add([]byte(said))
	}
	f.Fuzz(func(t *testing.T, said []byte) {
		e, err := parse(said)
		if (e == nil) == (err == nil) {
			t.Fatalf("e = %v, err = %v, want (e == nil) != (err == nil)", e, err)
		}
		if err == nil && (path.Clean(e.Path) != e.Path || e.Path[0] != '/' || strings.ContainsFunc(e.Path+e.Python, unicode.IsControl)) {
			t.Errorf("e = %+v, want an error or path.Clean(e.Path) == e.Path and e.Path[0] == '/' and not strings.ContainsFunc(e.Path+e.Python, unicode.IsControl)",
				e)
		}
	})
}
