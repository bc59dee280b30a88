// SPDX-License-Identifier: Apache-2.0

// Package packages_test makes a release, checks its packages with the distributions' tools, and builds them again.
package packages_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// A release that does not exist, so that the tests depend on no commit.
const (
	version = "9.8.7~test1"
	epoch   = "1700000000"
)

const fleet = "fleet "

// work is a directory that is removed after the last test.
var work string

// released makes a release, once for all tests that look at its packages.
var released = sync.OnceValue(func() error {
	cmd := exec.Command("../../packaging/release.sh", filepath.Join(work, "dist"))
	cmd.Env = environment()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("release.sh: %w: %s", err, out)
	}
	return nil
})

func environment() []string {
	return append(os.Environ(), "VERSION="+version, "SOURCE_DATE_EPOCH="+epoch)
}

func TestMain(m *testing.M) {
	var err error
	if work, err = os.MkdirTemp("", "boxd-packages"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(work)
	os.Exit(code)
}

// release returns the directory of what is published.
func release(t *testing.T) string {
	t.Helper()
	if err := released(); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(work, "dist")
}

// published returns the path of a package of the release. arch may have the prefix fleet, for the package of boxfleet.
func published(t *testing.T, format, arch string) string {
	t.Helper()
	name := "boxd"
	of, ok := strings.CutPrefix(arch, fleet)
	if ok {
		name = "boxd-fleet"
	} else if arch == "all" {
		name = "boxd-cockpit"
	}
	if format == "deb" {
		return filepath.Join(release(t), name+"_"+version+"_"+of+".deb")
	}
	machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64", "all": "noarch"}[of]
	return filepath.Join(release(t), name+"-"+version+"-1."+machine+".rpm")
}

// build builds a package from the sources in a directory, and returns its path.
func build(t *testing.T, source, format, arch string) string {
	t.Helper()
	out, script := t.TempDir(), "build.sh"
	if of, ok := strings.CutPrefix(arch, fleet); ok {
		script, arch = "fleet.sh", of
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(source, "packaging", script), format, arch, out)
	cmd.Env = environment()
	var errs strings.Builder
	cmd.Stderr = &errs
	path, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s %s: %v: %s", script, format, arch, err, errs.String())
	}
	return strings.TrimSpace(string(path))
}

// elsewhere returns a copy of the sources at another path, with only the files that git knows.
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

// The same sources produce the same bytes, wherever they are and whatever their modes, by themselves as in a release.
func TestPackagesAreReproducible(t *testing.T) {
	release(t)
	copied := elsewhere(t)
	for _, format := range []string{"deb", "rpm"} {
		for _, arch := range []string{"amd64", "all", fleet + "amd64"} {
			t.Run(format+" "+arch, func(t *testing.T) {
				t.Parallel()
				first, err := os.ReadFile(published(t, format, arch))
				if err != nil {
					t.Fatal(err)
				}
				second, err := os.ReadFile(build(t, copied, format, arch))
				if err != nil {
					t.Fatal(err)
				}
				if len(first) == 0 || !bytes.Equal(first, second) {
					t.Errorf("two builds of it differ: %d and %d bytes", len(first), len(second))
				}
			})
		}
	}
}

// check runs a tool on a package, and returns its output.
func check(t *testing.T, argv ...string) (string, error) {
	t.Helper()
	if _, err := exec.LookPath(argv[0]); errors.Is(err, exec.ErrNotFound) {
		boxtest.Missing(t, "the program "+argv[0])
	}
	out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput()
	return string(out), err
}

// Findings of the distributions' tools are fixed, or have their reason beside them: packaging/deb/lintian,
// packaging/rpm/rpmlint.toml.
func TestToolsOfTheDistributionsFindNothing(t *testing.T) {
	withinItsDirectory(t)
	for _, arch := range []string{"amd64", "arm64", "all", fleet + "amd64", fleet + "arm64"} {
		t.Run(arch, func(t *testing.T) {
			t.Parallel()
			if out, err := check(t, "lintian", "--allow-root", "--fail-on", "error,warning", published(t, "deb", arch)); err != nil {
				t.Errorf("lintian: %v\n%s", err, out)
			}
			out, err := check(t, "rpmlint", "-c", "../../packaging/rpm/rpmlint.toml", published(t, "rpm", arch))
			if err != nil || !strings.Contains(out, "0 errors, 0 warnings") {
				t.Errorf("rpmlint: err = %v, want no error and out containing \"0 errors, 0 warnings\":\n%s", err, out)
			}
		})
	}
}

// withinItsDirectory makes rpmlint unpack packages where it looks for the files. It passes cpio the names as in the package, with
// a leading slash: it would find nothing, and as root it would overwrite files of this host.
func withinItsDirectory(t *testing.T) {
	t.Helper()
	cpio, err := exec.LookPath("cpio")
	if err != nil {
		boxtest.Missing(t, "the program cpio")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "cpio"), []byte("#!/bin/sh\nexec "+cpio+" --no-absolute-filenames \"$@\"\n"), 0o700); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// Both packages have the same programs, units and documents at the paths of their distribution.
func TestBothPackagesHoldTheSame(t *testing.T) {
	deb, err := check(t, "dpkg-deb", "--fsys-tarfile", published(t, "deb", "arm64"))
	if err != nil {
		t.Fatal(err)
	}
	list := exec.CommandContext(t.Context(), "tar", "--list")
	list.Stdin = strings.NewReader(deb)
	names, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	rpm, err := check(t, "rpm", "-qpl", "--nosignature", published(t, "rpm", "arm64"))
	if err != nil {
		t.Fatalf("%v: %s", err, rpm)
	}
	for _, path := range []string{
		"/etc/boxd/box.toml", "/usr/bin/boxctl", "/usr/lib/boxd/boxd", "/usr/lib/boxd/boxfiles", "/usr/lib/boxd/boxinit", "/usr/lib/boxd/boxkeeper", "/usr/lib/boxd/boxnames", "/usr/lib/boxd/boxnet",
		"/usr/lib/systemd/system/boxd.service", "/usr/lib/systemd/system/boxd.socket", "/usr/lib/systemd/system/boxd-http.socket", "/usr/lib/systemd/system/boxd-langbot.socket", "/usr/lib/systemd/system/boxd-e2b.socket", "/usr/lib/systemd/system/boxd-fleet.socket", "/usr/lib/systemd/system/boxd-keeper.service", "/usr/lib/systemd/system/boxd-names.service", "/usr/lib/systemd/system/boxd-names.socket", "/usr/lib/systemd/system/boxd-scopes.service", "/usr/lib/systemd/system/boxd-scopes.socket", "/usr/lib/systemd/system/boxd-files.service", "/usr/lib/systemd/system/boxd-files.socket", "/usr/lib/systemd/system/boxd-push@.service", "/usr/lib/systemd/system/boxd-push.socket",
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

// The package of boxfleet has everything for a node or a gateway, and boxd's package has nothing of it, as most hosts are in no
// fleet. Its part of box.toml is accepted by boxd.
func TestThePackageOfTheFleet(t *testing.T) {
	dir := t.TempDir()
	if out, err := check(t, "dpkg-deb", "--raw-extract", published(t, "deb", fleet+"amd64"), dir); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	list, err := check(t, "rpm", "-qp", "--nosignature", "--list", published(t, "rpm", fleet+"amd64"))
	if err != nil {
		t.Fatalf("%v\n%s", err, list)
	}
	for path, says := range map[string]string{
		"etc/boxfleet/gateway.toml":                        "[nats]\n",
		"usr/bin/boxfleet":                                 version,
		"usr/lib/systemd/system/boxfleet-node.service":     "ExecStart=/usr/bin/boxfleet node\n",
		"usr/lib/systemd/system/boxfleet-gateway.service":  "ExecStart=/usr/bin/boxfleet serve\n",
		"usr/lib/systemd/system-preset/90-boxfleet.preset": "disable boxfleet-node.service\n",
		"usr/lib/sysusers.d/boxfleet.conf":                 "u boxfleet-gateway ",
		"usr/lib/boxd/box.toml.d/50-boxfleet.toml":         "[principals.boxfleet-node]\n",
		"usr/share/boxd-fleet/boxfleet-alerts.yaml":        "alert: BoxfleetNodeLost\n",
		"usr/share/boxd-fleet/boxfleet-dashboard.json":     `"title": "boxfleet"`,
		"usr/share/man/man8/boxfleet.8.gz":                 "",
		"usr/share/doc/boxd-fleet/fleet.md":                "# A fleet of hosts",
		"usr/share/doc/boxd-fleet/third-party.txt.gz":      "",
	} {
		text, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil || !strings.Contains(string(text), says) {
			t.Errorf("%s: %v, without %q", path, err, says)
		}
		if !strings.Contains("\n"+list, "\n/"+path+"\n") {
			t.Errorf("the .rpm has no %s", path)
		}
	}
	for _, other := range []string{"etc/boxd", "usr/lib/boxd/boxd", "usr/lib/systemd/system/boxd.service"} {
		if _, err := os.Stat(filepath.Join(dir, other)); err == nil {
			t.Errorf("it has %s, which is of another package", other)
		}
	}
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		if out, err := check(t, "sh", "-n", filepath.Join(dir, "DEBIAN", script)); err != nil {
			t.Errorf("%s: %v: %s", script, err, out)
		}
	}
	// Every user in a unit is created, and the user of boxd's principal is that of the agent.
	users, err := os.ReadFile(filepath.Join(dir, "usr/lib/sysusers.d/boxfleet.conf"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"node", "gateway"} {
		unit, err := os.ReadFile(filepath.Join(dir, "usr/lib/systemd/system/boxfleet-"+name+".service"))
		if err != nil || !strings.Contains(string(unit), "\nUser=boxfleet-"+name+"\n") || !strings.Contains(string(users), "\nu boxfleet-"+name+" ") {
			t.Errorf("%s: %v: another user than in %s", name, err, users)
		}
	}
	own := t.TempDir()
	rule, err := os.ReadFile(filepath.Join(dir, "usr/lib/boxd/box.toml.d/50-boxfleet.toml"))
	rule = bytes.ReplaceAll(rule, []byte(`user = "boxfleet-node"`), []byte(`user = "nobody"`)) // this user exists here
	if err != nil || os.WriteFile(filepath.Join(own, "box.toml"), rule, 0o600) != nil {
		t.Fatal(err)
	}
	if out, err := check(t, filepath.Join(boxtest.Programs(t), "boxd"), "-check", "-config", filepath.Join(own, "box.toml")); err != nil {
		t.Errorf("boxd: %v: %s", err, out)
	}
	deb, err := check(t, "dpkg-deb", "--contents", published(t, "deb", "amd64"))
	if err != nil || strings.Contains(deb, "boxfleet") {
		t.Errorf(`the package of boxd has something of boxfleet: err = %v, want no error and deb without "boxfleet"`,
			err)
	}
}

// The console's package has the pages, the metadata for Cockpit and software centres, and the licences of what is bundled. It has
// no program, and starts nothing.
func TestThePackageOfTheConsole(t *testing.T) {
	dir := t.TempDir()
	if out, err := check(t, "dpkg-deb", "--raw-extract", published(t, "deb", "all"), dir); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for path, says := range map[string]string{
		"DEBIAN/control":                       "Architecture: all\n",
		"usr/share/cockpit/boxd/manifest.json": `"content-security-policy": "style-src 'self' 'unsafe-inline'; img-src 'self' data:"`,
		"usr/share/cockpit/boxd/index.html":    "boxd.js",
		"usr/share/cockpit/boxd/boxd.js":       "/v1/",
		"usr/share/cockpit/boxd/boxd.css":      "--",
		"usr/share/cockpit/boxd/po.de.js":      `"Boxen"`,
		"usr/share/doc/boxd-cockpit/copyright": "== uplot",
		"usr/share/metainfo/" + metainfo:       `<launchable type="cockpit-manifest">boxd</launchable>`,
	} {
		text, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil || !strings.Contains(string(text), says) {
			t.Errorf("%s: %v, without %q", path, err, says)
		}
	}
	for _, script := range []string{"postinst", "preinst", "postrm", "prerm"} {
		if _, err := os.Stat(filepath.Join(dir, "DEBIAN", script)); err == nil {
			t.Errorf("it has a %s", script)
		}
	}
	const largest = 700 << 10 // the bundle has 460 kB; much more would be a framework
	if about, err := os.Stat(filepath.Join(dir, "usr/share/cockpit/boxd/boxd.js")); err != nil || about.Size() > largest {
		t.Errorf("%v: about = %+v, want no error and about.Size() <= largest", err, about)
	}
	if out, err := check(t, "appstreamcli", "validate", "--no-net", filepath.Join(dir, "usr/share/metainfo", metainfo)); err != nil {
		t.Errorf("appstreamcli: %v\n%s", err, out)
	}
	rpm, err := check(t, "rpm", "-qp", "--nosignature", "--list", published(t, "rpm", "all"))
	if err != nil || !strings.Contains(rpm, "/usr/share/cockpit/boxd/boxd.js\n") || !strings.Contains(rpm, "third-party.txt\n") {
		t.Errorf("the .rpm: err = %v, want no error and rpm containing \"/usr/share/cockpit/boxd/boxd.js\\n\" and rpm containing \"third-party.txt\\n\":\n%s",
			err, rpm)
	}
}

const metainfo = "io.github.boxd_dev.boxd_cockpit.metainfo.xml"
