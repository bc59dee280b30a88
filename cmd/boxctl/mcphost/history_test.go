// SPDX-License-Identifier: Apache-2.0

package mcphost

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func names(t *testing.T, dir, socket string) (list []string) {
	t.Helper()
	kept, err := Failures(dir, socket)
	if err != nil {
		t.Fatal(err)
	}
	for i := range kept {
		list = append(list, kept[i].Name)
	}
	return list
}

func TestTheLastFailureOfEachServerIsKept(t *testing.T) {
	t.Parallel()
	dir := HistoryDir(func(name string) string { return map[string]string{"XDG_STATE_HOME": t.TempDir()}[name] })
	start := time.Now()
	keep := func(socket, name string, after int) {
		t.Helper()
		at := start.Add(time.Duration(after) * time.Second)
		if err := KeepFailure(dir, &Failure{Socket: socket, Name: name, Phase: "handshake", Ended: at}); err != nil {
			t.Fatal(err)
		}
		list, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list { // the clock of a file system may be too coarse for a test
			if info, err := e.Info(); err == nil && !info.ModTime().Before(start) {
				if err := os.Chtimes(filepath.Join(dir, e.Name()), time.Time{}, start.Add(time.Duration(after-1000)*time.Second)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if got := names(t, dir, "/a"); got != nil {
		t.Errorf("before any: got %q, want nil", got)
	}
	keep("/a", "one", 1)
	keep("/a", "two/../..", 2)
	keep("/b", "one", 3)
	keep("/a", "one", 4) // once more
	if got := names(t, dir, "/a"); !slices.Equal(got, []string{"one", "two/../.."}) {
		t.Errorf(`got %q, want []string{"one", "two/../.."}`, got)
	}
	for range 2 {
		if err := ForgetFailures(dir, "/a", "one"); err != nil {
			t.Error(err)
		}
	}
	if a, b := names(t, dir, "/a"), names(t, dir, "/b"); !slices.Equal(a, []string{"two/../.."}) || !slices.Equal(b, []string{"one"}) {
		t.Errorf(`a = %q, b = %q, want a == []string{"two/../.."} and b == []string{"one"}`, a, b)
	}
	for i := range maxFailures {
		keep("/c", fmt.Sprint(i), 10+i)
	}
	if a, c := names(t, dir, "/a"), names(t, dir, "/c"); a != nil || len(c) != maxFailures {
		t.Errorf("a = %q, c = %q, want a == nil and len(c) == maxFailures", a, c)
	}
	if err := os.WriteFile(filepath.Join(dir, "bad.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if list, err := Failures(dir, "/c"); err == nil || len(list) != maxFailures {
		t.Errorf("with a file that is no record: %v, %d records", err, len(list))
	}
}

func TestMCPFailuresAreKeptInTheUsersStateDirectory(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ state, home, want string }{
		{"/s", "/h", "/s/boxctl/mcp"}, {"", "/h", "/h/.local/state/boxctl/mcp"}, {"relative", "/h", "/h/.local/state/boxctl/mcp"}, {"", "", ""}, {"relative", "h", ""},
	} {
		if got := HistoryDir(func(name string) string { return map[string]string{"XDG_STATE_HOME": tc.state, "HOME": tc.home}[name] }); got != tc.want {
			t.Errorf("%+v: got %q, want %q", tc, got, tc.want)
		}
	}
	if err := KeepFailure("", &Failure{}); err == nil {
		t.Error("no error without a directory for the history")
	}
	if err := ForgetFailures("", "/a", "one"); err != nil {
		t.Error(err)
	}
	if list, err := Failures("", "/a"); err != nil || list != nil {
		t.Errorf("list = %v, err = %v, want no error and list == nil", list, err)
	}
}
