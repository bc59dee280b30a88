// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/md5"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd-dev/boxd/internal/boxtest"
)

// A configuration file of a package is shown if it is unchanged, readable by everybody, and does
// not belong to a service.
func TestUnchangedConfigurationOfPackages(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	put := func(name, text string, mode os.FileMode) string {
		t.Helper()
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
		sum := md5.Sum([]byte(text))
		return hex.EncodeToString(sum[:])
	}
	link := func(target, name string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	status := "Package: matplotlib\nStatus: install ok installed\nConffiles:\n /etc/matplotlibrc " + put("etc/matplotlibrc", "backend: Agg\n", 0o644) +
		"\n /etc/tool/secret.conf " + put("etc/tool/secret.conf", "x", 0o640) +
		"\n /etc/tool/gone.conf " + put("gone", "x", 0o644) +
		"\n /etc/tool/old.conf " + put("etc/tool/old.conf", "y", 0o644) + " obsolete" +
		"\n /etc/ssh/sshd_config " + put("etc/ssh/sshd_config", "Port 22\n", 0o644) +
		"\n /etc/../etc/odd " + put("etc/odd", "z", 0o644) +
		"\n /etc/tool/link.conf " + put("elsewhere", "z", 0o644) +
		"\nDescription: draws\n /etc/not " + put("etc/not", "n", 0o644) + "\n\n" +
		"Package: changed\nStatus: install ok installed\nConffiles:\n /etc/changed.conf " + put("etc/changed.conf", "as shipped\n", 0o644) + "\n\n" +
		"Package: removed\nStatus: deinstall ok config-files\nConffiles:\n /etc/removed.conf " + put("etc/removed.conf", "r", 0o644) + "\n"
	put("etc/changed.conf", "password = hunter2\n", 0o644)
	link("../../elsewhere", "etc/tool/link.conf")
	put("var/lib/dpkg/status", status, 0o644)
	put("var/lib/ucf/hashfile", put("etc/php/8.2/mods-available/xml.ini", "extension=xml\n", 0o644)+"  /etc/php/8.2/mods-available/xml.ini\n", 0o644)
	put("var/lib/pacman/local/magick-1/files", "%FILES%\netc/\n\n%BACKUP%\netc/magick/policy.xml\t"+put("etc/magick/policy.xml", "<p/>", 0o644)+"\n\n", 0o644)
	link("/etc/php/8.2/mods-available/xml.ini", "etc/php/8.2/cli/conf.d/20-xml.ini")
	link("../changed.conf", "etc/tool/to-changed")
	link("/usr/share/fonts/x.conf", "etc/drawing/x.conf")
	link("/root/x", "etc/tool/out")
	link("/usr/lib/systemd/x", "etc/systemd/x")
	host, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(host)
	b := &rootBuilder{root: -1, host: host}
	got, err := b.listed([]string{packagesEntry, "odd", "!php/8.2/cli"})
	want := []string{"etc/drawing/x.conf", "etc/magick/policy.xml", "etc/matplotlibrc", "etc/odd", "etc/php/8.2/mods-available/xml.ini"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v\nwant %q", got, err, want)
	}
	if got, err := b.listed([]string{packagesEntry, "php"}); err != nil || !slices.Equal(got, []string{"etc/drawing/x.conf", "etc/magick/policy.xml", "etc/matplotlibrc", "etc/php"}) {
		t.Errorf(`got %q, err = %v, want no error and got == []string{"etc/drawing/x.conf", "etc/magick/policy.xml", "etc/matplotlibrc", "etc/php"}`,
			got, err)
	}
	if got, err := b.listed([]string{packagesEntry}); err != nil || !slices.Contains(got, "etc/php/8.2/cli/conf.d/20-xml.ini") {
		t.Errorf(`got %q, err = %v, want no error and got containing "etc/php/8.2/cli/conf.d/20-xml.ini"`, got, err)
	}
}

// Files that an rpm package has installed are shown as long as they are unchanged; rpm itself says which files these are.
func TestUnchangedConfigurationOfRPMPackages(t *testing.T) {
	t.Parallel()
	boxtest.RequireProgram(t, "rpmbuild")
	boxtest.RequireProgram(t, "rpm")
	boxtest.RequireRoot(t)
	dir := boxtest.TempDir(t)
	root := filepath.Join(dir, "root")
	spec := `Name: tool
Version: 1
Release: 1
Summary: A tool
License: MIT
BuildArch: noarch
%description
A tool.
%install
mkdir -p %{buildroot}/etc/tool %{buildroot}/etc/cron.d
for f in kept changed plain secret; do echo $f > %{buildroot}/etc/tool/$f.conf; done
echo x > %{buildroot}/etc/cron.d/tool
%files
%config(noreplace) /etc/tool/kept.conf
%config /etc/tool/changed.conf
/etc/tool/plain.conf
%attr(0600,root,root) %config /etc/tool/secret.conf
%config /etc/cron.d/tool
`
	run := func(name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Env = append(os.Environ(), "HOME="+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", name, err, out)
		}
	}
	if err := errors.Join(os.MkdirAll(root, 0o755), os.WriteFile(filepath.Join(dir, "tool.spec"), []byte(spec), 0o644)); err != nil {
		t.Fatal(err)
	}
	run("rpmbuild", "--define", "_topdir "+dir+"/build", "--quiet", "-bb", filepath.Join(dir, "tool.spec"))
	run("rpm", "--root", root, "--dbpath", "/var/lib/rpm", "--nodeps", "-i", filepath.Join(dir, "build/RPMS/noarch/tool-1-1.noarch.rpm"))
	for at := dir; at != "/" && at != os.TempDir(); at = filepath.Dir(at) { // the worker that reads the database runs as nobody
		if err := os.Chmod(at, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "etc/tool/changed.conf"), []byte("password = hunter2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	host, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(host)
	b := &rootBuilder{root: -1, host: host}
	if got, err := b.listed([]string{packagesEntry}); err != nil || !slices.Equal(got, []string{"etc/tool/kept.conf"}) {
		known, _ := b.configuration()
		t.Errorf(`%q, %v; rpm knows %q, want no error and got == []string{"etc/tool/kept.conf"}`, got, err, known)
	}
}
