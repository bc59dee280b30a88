// SPDX-License-Identifier: Apache-2.0

package supervisor_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/supervisor"
	"github.com/boxd-dev/boxd/supervisor/policy"
)

// A record is accepted only if it belongs to the session whose file it is, and to an owner of that name.
func FuzzSessionRecord(f *testing.F) {
	r := example()
	data, err := json.Marshal(r)
	if err != nil {
		f.Fatal(err)
	}
	for _, text := range []string{string(data), strings.Replace(string(data), "uid:7", "uid:0", 1), "{}", "null", "[1]", strings.Repeat("[", 10_000)} {
		f.Add([]byte(text))
	}
	state := f.TempDir()
	d, err := supervisor.OpenRecords(state)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(d.Close)
	path := filepath.Join(state, "sessions", r.Key+".json")
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := d.Read(r.Key)
		if err == nil && (got.Key != r.Key || policy.Key(got.Owner.Name, got.ID) != r.Key || got.Created.IsZero()) {
			t.Errorf("believed: got %+v, want an error or got.Key == %v and policy.Key(got.Owner.Name, got.ID) == r.Key and not got.Created.IsZero()",
				got, r.Key)
		}
	})
}

// The environment that PID 1 of a box hands over is either valid or refused with an error.
func FuzzEnvironment(f *testing.F) {
	for _, text := range []string{`["A=b"]`, `["A=b"][{"id":"e"}]`, `{"env":["QT1i"]}`, `{"env":null}`, `["=b"]`, `["A"]`, "", "[", `["A=\u0000"]`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		fd, err := unix.MemfdCreate("environment", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		file := os.NewFile(uintptr(fd), "environment")
		if _, err := file.Write(text); err != nil {
			t.Fatal(err)
		}
		env, _, err := supervisor.ReadEnvironment(file) // which closes file
		for _, kv := range env {
			if name, _, ok := strings.Cut(kv, "="); err == nil && (!ok || name == "" || strings.ContainsRune(kv, 0)) {
				t.Errorf(`%q has %q, want an error or ok == true and name != "" and not strings.ContainsRune(kv, 0)`,
					text, kv)
			}
		}
	})
}
