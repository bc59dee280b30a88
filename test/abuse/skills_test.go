// SPDX-License-Identifier: Apache-2.0

package abuse_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/boxd-dev/boxd/internal/boxtest"
	"github.com/boxd-dev/boxd/relay/api"
)

// No program of a box can change one of its skills, by any path: the kernel says that the mount is read-only. A skill cannot be
// moved, and nothing can be put beside or over it; nothing else of the store is in the box. In the end the store is unchanged.
func TestT29ASkillIsNotTheBoxsToChange(t *testing.T) {
	t.Parallel()
	d := boxtest.Beside(t)
	c := d.Client
	if _, err := c.CreateSkill(t.Context(), &api.SkillRequest{Name: "one", Description: "Does it."}); err != nil {
		t.Fatal(err)
	}
	k, err := c.WriteSkillFile(t.Context(), "one", &api.SkillFileWrite{Path: "bin/run", Content: "#!/bin/sh\necho ran\n", Executable: true})
	if err != nil {
		t.Fatal(err)
	}
	d.NewSession(t, api.SessionRequest{ID: "s", Skills: []string{"one"}})
	if _, _, err := c.ActivateSkill(t.Context(), "s", "create-skill"); err != nil {
		t.Fatal(err)
	}
	if got := d.Sh(t, "s", "/skills/one/bin/run"); got != "ran\n" {
		t.Errorf(`its program: got %q, want "ran\n"`, got)
	}
	fails := func(line string, words ...string) {
		t.Helper()
		r, err := d.Exec(t.Context(), "s", &api.ExecRequest{Command: &line})
		said := func(word string) bool { return strings.Contains(r.Stderr, word) }
		if err != nil || r.ExitCode == nil || *r.ExitCode == 0 || len(words) > 0 && !slices.ContainsFunc(words, said) {
			t.Errorf("%s: r = %+v, err = %v, want no error and r.ExitCode != nil and *r.ExitCode != 0 and (len(words) == 0 or slices.ContainsFunc(words, said))",
				line, r, err)
		}
	}
	const readOnly, closed = "Read-only file system", "Permission denied" // on open, the kernel checks the modes first
	for _, at := range []string{"/skills/one", "/skills/create-skill", "/proc/self/root/skills/one", "/proc/self/cwd/../skills/one", "/workspace/link"} {
		d.Sh(t, "s", "ln -sfn /skills/one /workspace/link")
		for _, line := range []string{
			"touch %s/new", "mkdir %s/new", "echo x >%s/SKILL.md", "rm -f %s/SKILL.md", "chmod 777 %s/SKILL.md", "mv %s/SKILL.md /tmp", "mv %[1]s/SKILL.md %[1]s/x",
			"ln -s / %s/link", "ln %[1]s/SKILL.md %[1]s/hard", "chown box %s/SKILL.md", "exec 7<%s/SKILL.md; echo x >/proc/self/fd/7", "cd -P %s && echo x >SKILL.md",
		} {
			fails(fmt.Sprintf(line, at), readOnly)
		}
		for _, line := range []string{"echo x >>%s/SKILL.md", "touch %s/SKILL.md", "truncate -s0 %s/SKILL.md"} {
			fails(fmt.Sprintf(line, at), readOnly, closed)
		}
	}
	for _, line := range []string{
		"ln /skills/one/SKILL.md /tmp/hard", "mv /skills/one /skills/two", "mv /skills/one /tmp", "mv /skills /tmp", "rmdir /skills/one", "mkdir /skills/two", "touch /skills/x", "ln -s /tmp /skills/two",
		"umount /skills/one", "umount /skills", "mount -o remount,rw,bind /skills/one", "mount --bind /tmp /skills/one", "mount -t tmpfs tmpfs /skills", "mv /tmp /skills/one",
		"cd /skills/one/../../trees", "ls " + d.State, "ls /var/lib/boxd/skills",
	} {
		fails(line)
	}
	// A mount of a session with one of these targets is refused too.
	for _, target := range []string{"/skills/one", "/skills", "/skills/x"} {
		_, _, err := d.CreateSession(t.Context(), &api.SessionRequest{ID: "other", Mounts: []api.Mount{{Source: filepath.Join(d.State, "skills"), Target: target}}})
		if err == nil {
			t.Errorf("a session has a mount on %s", target)
		}
	}
	if now, err := c.Skill(t.Context(), "one"); err != nil || now.Digest != k.Digest {
		t.Errorf("%s, was %s; %v", now.Digest, k.Digest, err)
	}
	found := 0
	err = filepath.Walk(filepath.Join(d.State, "skills"), func(path string, info os.FileInfo, err error) error {
		if err == nil && strings.Contains(path, "/trees/") && info.Mode().IsRegular() {
			if found++; info.Mode().Perm()&0o022 != 0 {
				t.Errorf("%s is %v, want info.Mode().Perm() & 0o022 == 0", path, info.Mode())
			}
		}
		return err
	})
	if err != nil || found < 3 {
		t.Errorf("%d files, %v", found, err)
	}
}
