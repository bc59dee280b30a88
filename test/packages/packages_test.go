// SPDX-License-Identifier: Apache-2.0

// Package packages_test builds the packages twice and has them read by the tools of the distributions.
package packages_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// Of a release that does not exist, so that the tests depend on no commit.
const (
	version = "9.8.7~test1"
	epoch   = "1700000000"
)

// build makes a package from the sources in a directory, and returns its path.
func build(t *testing.T, source, format, arch string) string {
	t.Helper()
	out := t.TempDir()
	cmd := exec.CommandContext(t.Context(), filepath.Join(source, "packaging/build.sh"), format, arch, out)
	cmd.Env = append(os.Environ(), "VERSION="+version, "SOURCE_DATE_EPOCH="+epoch)
	var errs strings.Builder
	cmd.Stderr = &errs
	path, err := cmd.Output()
	if err != nil {
		t.Fatalf("build.sh %s %s: %v: %s", format, arch, err, errs.String())
	}
	return strings.TrimSpace(string(path))
}

// elsewhere is a copy of the sources under another path, where nothing is that git does not know.
func elsewhere(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "a", "longer", "path")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `umask 077; git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$0"`, dir)
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("copy the sources: %v: %s", err, out)
	}
	return dir
}

// The same sources make the same bytes, wherever they lie and whatever modes they have there.
func TestPackagesAreReproducible(t *testing.T) {
	copied := elsewhere(t)
	for _, format := range []string{"deb", "rpm"} {
		first, err := os.ReadFile(build(t, "../..", format, "amd64"))
		if err != nil {
			t.Fatal(err)
		}
		second, err := os.ReadFile(build(t, copied, format, "amd64"))
		if err != nil {
			t.Fatal(err)
		}
		if len(first) == 0 || !bytes.Equal(first, second) {
			t.Errorf("two builds of the .%s differ: %d and %d bytes", format, len(first), len(second))
		}
	}
}

// check runs a tool over a package, and returns what it has said.
func check(t *testing.T, argv ...string) (string, error) {
	t.Helper()
	if _, err := exec.LookPath(argv[0]); errors.Is(err, exec.ErrNotFound) {
		boxtest.Missing(t, "the program "+argv[0])
	}
	out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput()
	return string(out), err
}

// What the tools of the distributions find is mended, or has its reason beside it: packaging/deb/lintian,
// packaging/rpm/rpmlint.toml.
func TestToolsOfTheDistributionsFindNothing(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		if out, err := check(t, "lintian", "--allow-root", "--fail-on", "error,warning", build(t, "../..", "deb", arch)); err != nil {
			t.Errorf("lintian, %s: %v\n%s", arch, err, out)
		}
		out, err := check(t, "rpmlint", "-c", "../../packaging/rpm/rpmlint.toml", build(t, "../..", "rpm", arch))
		if err != nil || !strings.Contains(out, "0 errors, 0 warnings") {
			t.Errorf("rpmlint, %s: %v\n%s", arch, err, out)
		}
	}
}

// Both packages have the same programs, units and documents at the places of their distribution.
func TestBothPackagesHoldTheSame(t *testing.T) {
	deb, err := check(t, "dpkg-deb", "--fsys-tarfile", build(t, "../..", "deb", "arm64"))
	if err != nil {
		t.Fatal(err)
	}
	list := exec.CommandContext(t.Context(), "tar", "--list")
	list.Stdin = strings.NewReader(deb)
	names, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	rpm, err := check(t, "rpm", "-qpl", "--nosignature", build(t, "../..", "rpm", "arm64"))
	if err != nil {
		t.Fatalf("%v: %s", err, rpm)
	}
	for _, path := range []string{
		"/etc/boxd/box.toml", "/usr/bin/boxctl", "/usr/lib/boxd/boxd", "/usr/lib/boxd/boxfiles", "/usr/lib/boxd/boxinit", "/usr/lib/boxd/boxkeeper", "/usr/lib/boxd/boxnames",
		"/usr/lib/systemd/system/boxd.service", "/usr/lib/systemd/system/boxd.socket", "/usr/lib/systemd/system/boxd-http.socket", "/usr/lib/systemd/system/boxd-langbot.socket", "/usr/lib/systemd/system/boxd-e2b.socket", "/usr/lib/systemd/system/boxd-keeper.service", "/usr/lib/systemd/system/boxd-names.service", "/usr/lib/systemd/system/boxd-names.socket",
		"/usr/lib/systemd/system/boxd-boxes.service", "/usr/lib/systemd/system/box.slice", "/usr/lib/systemd/system-preset/90-boxd.preset",
		"/usr/lib/sysusers.d/boxd.conf", "/usr/lib/tmpfiles.d/boxd.conf", "/usr/lib/systemd/catalog/boxd.catalog", "/usr/share/boxd/boxd-alerts.yaml", "/usr/share/boxd/boxd-dashboard.json", "/usr/share/doc/boxd/README.md", "/usr/share/doc/boxd/third-party.txt.gz",
	} {
		if !strings.Contains("\n"+string(names), "\n."+path+"\n") {
			t.Errorf("the .deb has no %s", path)
		}
		if !strings.Contains("\n"+rpm, "\n"+path+"\n") {
			t.Errorf("the .rpm has no %s", path)
		}
	}
}
