// SPDX-License-Identifier: Apache-2.0

package packages_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// database creates a vulnerability database with one entry, for the versions of a module before fixed.
func database(t *testing.T, module, fixed string) string {
	t.Helper()
	const id, at = "GO-2020-9999", "2020-01-02T03:04:05Z"
	dir := t.TempDir()
	for name, text := range map[string]string{
		"index/db.json":      `{"modified":"` + at + `"}`,
		"index/modules.json": `[{"path":"` + module + `","vulns":[{"id":"` + id + `","modified":"` + at + `","fixed":"` + fixed + `"}]}]`,
		"index/vulns.json":   `[{"id":"` + id + `","modified":"` + at + `"}]`,
		"ID/" + id + ".json": `{"schema_version":"1.3.1","id":"` + id + `","modified":"` + at + `","published":"` + at + `","summary":"made up","details":"made up",
			"affected":[{"package":{"name":"` + module + `","ecosystem":"Go"},"ranges":[{"type":"SEMVER","events":[{"introduced":"0"},{"fixed":"` + fixed + `"}]}],
			"ecosystem_specific":{"imports":[{"path":"` + module + `"}]}}],"database_specific":{"url":"https://example.com/` + id + `"}}`,
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return "file://" + dir
}

// A vulnerability in linked code is found, and an unavailable database is not treated as an empty one.
func TestKnownVulnerabilitiesAreLookedUp(t *testing.T) {
	const linked = "github.com/BurntSushi/toml"
	for name, c := range map[string]struct {
		base    string
		code    int
		message string
	}{
		"none":        {database(t, linked, "0.1.0"), 0, "No vulnerabilities found"},
		"one":         {database(t, linked, "99.0.0"), 1, "GO-2020-9999"},
		"no database": {"http://127.0.0.1:1", 2, "NOT looked up"},
	} {
		cmd := exec.CommandContext(t.Context(), "../vuln.sh", "-scan=package")
		cmd.Env = append(os.Environ(), "GOVULNDB="+c.base)
		said, err := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != c.code || !strings.Contains(string(said), c.message) {
			t.Errorf("%s: %v, status %d, want %d\n%s", name, err, got, c.code, said)
		}
	}
}
