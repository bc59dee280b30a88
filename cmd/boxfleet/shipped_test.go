// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/user"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
)

const (
	shippedFile = "../../packaging/fleet/gateway.toml"
	manualPage  = "../../packaging/man/boxfleet.8"
)

// settings returns the keys of a configuration with their values, as in a file.
func settings(t *testing.T, cfg *gatewayConfig) map[string]string {
	t.Helper()
	found := map[string]string{}
	v := reflect.ValueOf(*cfg)
	for i := range v.NumField() {
		table := v.Type().Field(i).Tag.Get("toml")
		if v.Field(i).Kind() != reflect.Struct {
			continue // of callers
		}
		for j := range v.Field(i).NumField() {
			key := v.Field(i).Type().Field(j).Tag.Get("toml")
			text, err := toml.Marshal(map[string]any{key: v.Field(i).Field(j).Interface()})
			if err != nil {
				t.Fatal(err)
			}
			line := strings.TrimSpace(string(text))
			if line == "" { // an empty list
				line = key + " = []"
			}
			found[table+"."+key] = line
		}
	}
	if len(found) < 12 {
		t.Fatalf("only %d keys: found = %v, want len(found) >= 12", len(found), found)
	}
	return found
}

// The installed file sets nothing, and has every key with its default in its table. So has the manual page.
func TestShippedFileAndManualPageHaveEveryKey(t *testing.T) {
	t.Parallel()
	cfg, err := readGateway(shippedFile)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(shippedFile)
	if err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(t.TempDir(), "gateway.toml")
	if err := os.WriteFile(open, regexp.MustCompile(`(?m)^#([a-z])`).ReplaceAll(text, []byte("$1")), 0o600); err != nil {
		t.Fatal(err)
	}
	said, err := readGateway(open)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := settings(t, said), settings(t, cfg); !reflect.DeepEqual(got, want) {
		t.Errorf("the values of the file are %v, the defaults %v", got, want)
	}
	page, err := os.ReadFile(manualPage)
	if err != nil {
		t.Fatal(err)
	}
	for key, line := range settings(t, cfg) {
		table, _, _ := strings.Cut(key, ".")
		_, part, _ := strings.Cut(string(text), "\n["+table+"]\n")
		part, _, _ = strings.Cut(part, "\n[")
		if !strings.Contains("\n"+part, "\n#"+line+"\n") {
			t.Errorf("%s: [%s] has no %q", shippedFile, table, line)
		}
		_, part, _ = strings.Cut(string(page), "\n.Ss ["+table+"]\n")
		part, _, _ = strings.Cut(part, "\n.Ss ")
		if want := ".It Cm " + strings.ReplaceAll(line, `"`, `\(dq`); !strings.Contains(part, want+"\n") {
			t.Errorf("%s: [%s] has no %q", manualPage, table, want)
		}
	}
}

// A key is created once, readable by its owner only, and an incomplete one is not left behind.
func TestAKeyIsMadeOnce(t *testing.T) {
	t.Parallel()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "key")
	if _, err := makeKey(path, "no-such-user"); err == nil {
		t.Error("a key was made for a user that does not exist")
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("err = %v, want os.IsNotExist(err)", err)
	}
	made, err := makeKey(path, me.Username)
	if err != nil {
		t.Fatal(err)
	}
	if read, err := readKey(path); err != nil || !read.Equal(made) {
		t.Errorf("another key is read: err = %v, want no error and read.Equal(made)", err)
	}
	if _, err := makeKey(path, ""); err == nil {
		t.Error("the existing key was replaced")
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("info = %v, err = %v, want no error and info.Mode().Perm() == 0o600", info, err)
	}
}
