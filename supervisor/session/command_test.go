// SPDX-License-Identifier: Apache-2.0

package session

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxd-dev/boxd/internal/fault"
	"github.com/boxd-dev/boxd/isolation"
	"github.com/boxd-dev/boxd/quantity"
	"github.com/boxd-dev/boxd/supervisor/policy"
	"github.com/boxd-dev/boxd/supervisor/process"
)

func session(t *testing.T) *Context {
	t.Helper()
	cfg := policy.DefaultConfig()
	settings, profile, err := cfg.Merge(&policy.Request{})
	if err != nil {
		t.Fatal(err)
	}
	return &Context{Config: &cfg, Policy: policy.EffectivePolicy{Policy: policy.NoPolicy()}, Profile: profile, Settings: settings, Env: []string{"A=session", "B=session"}}
}

func request(change func(*ProcessRequest)) *ProcessRequest {
	r := &ProcessRequest{ID: "p", Managed: true, Exec: ExecRequest{Argv: []string{"x"}, Env: map[string]string{"A": "secret"}}}
	if change != nil {
		change(r)
	}
	return r
}

func TestAManagedProcessHasNoTimeoutItDoesNotAskFor(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		managed   bool
		requested time.Duration
		want      time.Duration
		clamped   int
	}{
		{true, 0, 0, 0},
		{true, time.Hour, time.Hour, 0},
		{false, 0, 30 * time.Second, 0},
		{false, time.Hour, 2 * time.Minute, 1},
	} {
		spec, err := session(t).Process(request(func(r *ProcessRequest) {
			if r.Managed = tc.managed; tc.requested > 0 {
				r.Exec.Timeout = new(quantity.Duration(tc.requested))
			}
		}))
		if err != nil || spec.Command.Timeout != tc.want || len(spec.Clamped) != tc.clamped {
			t.Errorf("%+v: %+v, %v", tc, spec, err)
		}
	}
}

func TestAProgramInATerminalEndsWhenTheOperatorSays(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		maximum, requested, want time.Duration
		terminal                 bool
		clamped                  int
	}{
		{0, 0, 0, true, 0},
		{time.Minute, 0, time.Minute, true, 0},
		{time.Minute, time.Second, time.Second, true, 0},
		{time.Minute, time.Hour, time.Minute, true, 1},
		{time.Minute, 0, 0, false, 0},
	} {
		c := session(t)
		c.Config.Exec.MaxInteractive = quantity.Duration(tc.maximum)
		spec, err := c.Process(request(func(r *ProcessRequest) {
			if tc.requested > 0 {
				r.Exec.Timeout = new(quantity.Duration(tc.requested))
			}
			if tc.terminal {
				r.Terminal = &process.Size{Rows: 24, Cols: 80}
			}
		}))
		if err != nil || spec.Command.Timeout != tc.want || len(spec.Clamped) != tc.clamped {
			t.Errorf("%+v: %+v, %v", tc, spec, err)
		}
	}
}

func TestAProcessIsWhatWasAskedFor(t *testing.T) {
	t.Parallel()
	spec, err := session(t).Process(request(func(r *ProcessRequest) { r.Terminal = &process.Size{Rows: 2, Cols: 3} }))
	if err != nil {
		t.Fatal(err)
	}
	c := &spec.Command
	if !c.Durable || c.Stdin != isolation.StdinPipe || *c.Terminal != (isolation.Terminal{Rows: 2, Cols: 3}) || c.Output != (isolation.Output{Tail: 1 << 20}) {
		t.Errorf("%+v", c)
	}
	if !slices.Equal(c.Env, []string{"B=session", "A=secret"}) || !slices.Equal(spec.EnvNames, []string{"A"}) {
		t.Errorf("%q, %q", c.Env, spec.EnvNames)
	}
	for field, change := range map[string]func(*ProcessRequest){
		"id":      func(r *ProcessRequest) { r.ID = "" },
		"argv":    func(r *ProcessRequest) { r.Exec.Argv = []string{} },
		"stdin":   func(r *ProcessRequest) { r.Stdin, r.StdinData = true, []byte("x") },
		"output":  func(r *ProcessRequest) { r.Output = new(quantity.Size(1)) },
		"ready":   func(r *ProcessRequest) { r.Ready = &process.Ready{} },
		"timeout": func(r *ProcessRequest) { r.Exec.Timeout = new(quantity.Duration(0)) },
	} {
		_, err := session(t).Process(request(change))
		if f, ok := err.(*fault.Error); !ok || f.Field != field { //nolint:errorlint // it is not wrapped
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestTwoRequestsAreComparedByWhatTheyAskFor(t *testing.T) {
	t.Parallel()
	requestOf := func(change func(*ProcessRequest)) map[string]string {
		spec, err := session(t).Process(request(change))
		if err != nil {
			t.Fatal(err)
		}
		return spec.Request
	}
	base := requestOf(nil)
	for names, change := range map[string]func(*ProcessRequest){
		"":         func(r *ProcessRequest) { r.Exec.Stdin, r.Labels = []byte{}, map[string]string{} },
		"argv":     func(r *ProcessRequest) { r.Exec.Argv = []string{"y"} },
		"env":      func(r *ProcessRequest) { r.Exec.Env = map[string]string{"A": "other"} },
		"cwd":      func(r *ProcessRequest) { r.Exec.Dir = "/tmp" },
		"lease":    func(r *ProcessRequest) { r.Lease = new(time.Minute) },
		"restart":  func(r *ProcessRequest) { r.Restart = &process.Restart{Policy: "always"} },
		"terminal": func(r *ProcessRequest) { r.Terminal, r.Stdin = &process.Size{Rows: 1, Cols: 1}, false },
	} {
		got := slices.DeleteFunc(process.Differences(base, requestOf(change)), func(name string) bool { return names == "terminal" && name == "stdin" })
		if strings.Join(got, " ") != names {
			t.Errorf("%q: %q", names, got)
		}
	}
	input := func(data string) func(*ProcessRequest) { return func(r *ProcessRequest) { r.StdinData = []byte(data) } }
	if got := process.Differences(requestOf(input("\xff")), requestOf(input("\xfe"))); !slices.Equal(got, []string{"stdin_data"}) {
		t.Errorf("%q", got)
	}
	size := func(n uint16) func(*ProcessRequest) {
		return func(r *ProcessRequest) { r.Terminal = &process.Size{Rows: n, Cols: n} }
	}
	if got := process.Differences(requestOf(size(1)), requestOf(size(2))); len(got) > 0 {
		t.Errorf("%q", got)
	}
	for name, value := range base {
		if strings.Contains(value, "secret") {
			t.Errorf("%s tells", name)
		}
	}
}
